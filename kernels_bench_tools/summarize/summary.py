"""From records to a summary: every implementation on every device, failures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median

from kernels_bench_tools.schema.record import Environment, Provenance, Record, Status
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row, Summary, WorkloadSummary
from kernels_bench_tools.summarize.compare import Speedup, compare
from kernels_bench_tools.summarize.merge import estimate
from kernels_bench_tools.summarize.metrics import (
    ARITHMETIC,
    BANDWIDTH,
    DEVICE_HOT,
    E2E,
    FRACTION,
    HOST_SUBMIT,
)
from kernels_bench_tools.summarize.ranking import overall_speedup, ranked, speedups_by_process
from kernels_bench_tools.summarize.sources import Attempt, Identity, Source, attempts, identities
from kernels_bench_tools.summarize.views import titles_and_keys
from kernels_bench_tools.summarize.words import reason_of
from kernels_bench_tools.summarize.workloads import in_order, workload_summary
from kernels_bench_tools.text import series_slug

NO_RECORD = "left no record of this workload"


def summarize(operator: str, title: str, sources: Sequence[Source]) -> Summary:
    """Return what the records say about an operator.

    Args:
        operator: Its name, such as ``"layer_norm"``.
        title: What a chart calls it.
        sources: Files of records; none gives a summary without devices.
    """
    names = identities(sources)
    devices = groupby(attempts(sources), key=lambda attempt: attempt.device.slug)
    return Summary(
        operator=operator,
        title=title,
        devices=[view for _, tried in devices for view in _device_views(list(tried), names)],
    )


def _device_views(tried: Sequence[Attempt], names: Mapping[str, Identity]) -> list[DeviceSummary]:
    """Return the views of one device; a process has its ceilings in one of them, so they are shared."""
    ceilings = _ceilings(tried)
    views = [list(group) for _, group in groupby(tried, key=lambda attempt: attempt.view)]
    called = titles_and_keys([group[0].view for group in views])
    return [_view(group, names, ceilings, *call) for group, call in zip(views, called, strict=True)]


def _view(
    tried: Sequence[Attempt], names: Mapping[str, Identity], ceilings: dict[str, float], title: str, key: str
) -> DeviceSummary:
    workloads = _workloads(tried)
    baseline = _baseline(tried, names)
    implementation = baseline.implementation if baseline else ""
    rows = [_row(attempt, names[attempt.implementation], workloads, baseline, key) for attempt in tried]
    return DeviceSummary(
        device=tried[0].device,
        view=title,
        key=key,
        baseline=implementation,
        workloads=workloads,
        ceilings=ceilings,
        rows=ranked(rows, implementation),
    )


def _ceilings(tried: Sequence[Attempt]) -> dict[str, float]:
    """Return the median of each ceiling over all processes of the device, whatever they measured besides."""
    found: dict[str, list[float]] = {}
    for attempt in tried:
        for records in attempt.processes.values():
            for record in records:
                for name, value in record.ceilings.items():
                    found.setdefault(name, []).append(value)
    return {name: median(values) for name, values in sorted(found.items())}


def _workloads(tried: Sequence[Attempt]) -> list[WorkloadSummary]:
    found: dict[str, WorkloadSummary] = {}
    for attempt in tried:
        for name, record in attempt.records.items():
            found.setdefault(name, workload_summary(record.wl))
    return in_order(list(found.values()))


def _baseline(tried: Sequence[Attempt], names: Mapping[str, Identity]) -> Attempt | None:
    """Return the first declared baseline that passed a workload of this view."""
    for attempt in tried:
        passed = any(record.outcome is Status.OK for record in attempt.records.values())
        if names[attempt.implementation].baseline and passed:
            return attempt
    return None


def _row(
    attempt: Attempt,
    identity: Identity,
    workloads: Sequence[WorkloadSummary],
    baseline: Attempt | None,
    key: str,
) -> Row:
    points = [_point(workload.name, attempt, baseline) for workload in workloads]
    passed = sum(point.status is Status.OK for point in points)
    status, reason = _outcome(attempt, points)
    speedup, over = overall_speedup(points, _by_process(points, attempt, baseline))
    origin = attempt.representative()
    return Row(
        implementation=attempt.implementation,
        slug="-".join(filter(None, (series_slug(attempt.implementation, attempt.device.slug), key))),
        title=identity.title,
        description=identity.description,
        family=identity.family,
        baseline=identity.baseline if baseline is None else attempt is baseline,
        status=status,
        reason=reason,
        passed=passed,
        total=len(points),
        speedup=speedup.value if speedup else None,
        speedup_low=speedup.low if speedup and speedup.known else None,
        speedup_high=speedup.high if speedup and speedup.known else None,
        speedup_workloads=over,
        trust=origin.trust if origin else "",
        points=points,
        environment=origin.env if origin else Environment(),
        provenance=origin.provenance if origin else Provenance(),
        tags=origin.tags if origin else {},
    )


def _outcome(attempt: Attempt, points: Sequence[Point]) -> tuple[Status, str]:
    """Return the status and reason of a row: its first workload that is not ok, if there is one."""
    for point in points:
        if point.status is not Status.OK:
            return point.status, point.reason
    if points:
        return Status.OK, ""
    if attempt.whole is not None and attempt.whole.outcome is not Status.OK:
        return attempt.whole.outcome, reason_of(attempt.whole)
    return Status.INVALID, "left no record of any workload"


def _by_process(
    points: Sequence[Point], attempt: Attempt, baseline: Attempt | None
) -> Sequence[Sequence[float]]:
    if baseline is None:
        return ()
    shared = [point.workload for point in points if point.speedup is not None]
    return speedups_by_process([(attempt.processes[name], baseline.processes[name]) for name in shared])


def _point(workload: str, attempt: Attempt, baseline: Attempt | None) -> Point:
    record = attempt.record(workload)
    if record is None:
        return Point(workload=workload, status=Status.INVALID, reason=NO_RECORD)
    records = attempt.processes.get(workload, [])
    other = baseline.processes.get(workload, []) if baseline is not None else []
    return _measured(workload, record, max(len(records), 1), compare(records, other))


def _measured(workload: str, record: Record, processes: int, speedup: Speedup) -> Point:
    point = Point(
        workload=workload,
        status=record.outcome,
        reason=reason_of(record),
        processes=processes,
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        verdict=speedup.verdict,
        regime=record.regime,
        fraction=FRACTION.value(record),
        ceiling=record.roofline.ceiling if record.roofline and FRACTION.value(record) is not None else "",
        flags=record.flags,
        device_hot_ms=DEVICE_HOT.value(record),
        host_submit_ms=HOST_SUBMIT.value(record),
        e2e_ms=E2E.value(record),
        span_ms=record.span_ms,
        gb_per_s=BANDWIDTH.value(record),
        tflop_per_s=ARITHMETIC.value(record),
        compile_ms=record.compile_ms,
        peak_bytes=record.peak_bytes,
        absmax=record.absmax,
        measured=record.ts,
    )
    if record.lat_ms is not None:
        point.p50_ms = record.lat_ms.p50
        # Of several processes the record has the interval; that of one of them would not hold the others.
        found = estimate([record]) if processes == 1 else None
        ends = (found.low, found.high) if found and found.known else (None, None)
        latency = record.lat_ms
        point.ci_low_ms, point.ci_high_ms = ends if processes == 1 else (latency.ci_low, latency.ci_high)
        point.reps = record.lat_ms.reps
        point.timer = record.lat_ms.timer
        point.cache = record.lat_ms.cache
    return point
