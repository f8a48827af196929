"""From records to a summary: every implementation on every device, failures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from kernels_bench_tools.naming import series_slug
from kernels_bench_tools.records import Environment, Provenance, Record, Status
from kernels_bench_tools.summaries import DeviceSummary, Point, Row, Summary, Verdict, WorkloadSummary
from kernels_bench_tools.summarize.compare import compare, interval, overall_speedup, ranked, reason_of
from kernels_bench_tools.summarize.metrics import ARITHMETIC, BANDWIDTH
from kernels_bench_tools.summarize.sources import Attempt, Identity, Source, attempts, identities
from kernels_bench_tools.summarize.workloads import in_order, workload_summary

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
        devices=[_device_summary(list(group), names) for _, group in devices],
    )


def _device_summary(tried: list[Attempt], names: Mapping[str, Identity]) -> DeviceSummary:
    workloads = _workloads(tried)
    baseline = _baseline(tried, names)
    implementation = baseline.implementation if baseline else ""
    rows = [_row(attempt, names[attempt.implementation], workloads, baseline) for attempt in tried]
    return DeviceSummary(
        device=tried[0].device,
        baseline=implementation,
        workloads=workloads,
        rows=ranked(rows, implementation),
    )


def _workloads(tried: Sequence[Attempt]) -> list[WorkloadSummary]:
    found: dict[str, WorkloadSummary] = {}
    for attempt in tried:
        for name, record in attempt.records.items():
            found.setdefault(name, workload_summary(record.wl))
    return in_order(list(found.values()))


def _baseline(tried: Sequence[Attempt], names: Mapping[str, Identity]) -> Attempt | None:
    """Return the first declared baseline that passed a workload on this device."""
    for attempt in tried:
        passed = any(record.outcome is Status.OK for record in attempt.records.values())
        if names[attempt.implementation].baseline and passed:
            return attempt
    return None


def _row(
    attempt: Attempt, identity: Identity, workloads: Sequence[WorkloadSummary], baseline: Attempt | None
) -> Row:
    points = [_point(workload.name, attempt, baseline) for workload in workloads]
    passed = sum(point.status is Status.OK for point in points)
    status, reason = _outcome(attempt, points)
    speedup, over = overall_speedup(points)
    origin = attempt.representative()
    return Row(
        implementation=attempt.implementation,
        slug=series_slug(attempt.implementation, attempt.device.slug),
        title=identity.title,
        description=identity.description,
        family=identity.family,
        baseline=identity.baseline if baseline is None else attempt is baseline,
        status=status,
        reason=reason,
        passed=passed,
        total=len(points),
        speedup=speedup,
        speedup_workloads=over,
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


def _point(workload: str, attempt: Attempt, baseline: Attempt | None) -> Point:
    record = attempt.record(workload)
    if record is None:
        return Point(workload=workload, status=Status.INVALID, reason=NO_RECORD)
    other = baseline.records.get(workload) if baseline is not None else None
    speedup, verdict = compare(record, other) if other is not None else (None, Verdict.NONE)
    return _measured(workload, record, speedup, verdict)


def _measured(workload: str, record: Record, speedup: float | None, verdict: Verdict) -> Point:
    point = Point(
        workload=workload,
        status=record.outcome,
        reason=reason_of(record),
        speedup=speedup,
        verdict=verdict,
        gb_per_s=BANDWIDTH.value(record),
        tflop_per_s=ARITHMETIC.value(record),
        compile_ms=record.compile_ms,
        peak_bytes=record.peak_bytes,
        absmax=record.absmax,
        measured=record.ts,
    )
    if record.lat_ms is not None:
        point.p50_ms = record.lat_ms.p50
        point.ci_low_ms, point.ci_high_ms = interval(record.lat_ms) or (None, None)
        point.reps = record.lat_ms.reps
        point.timer = record.lat_ms.timer
        point.cache = record.lat_ms.cache
    return point
