"""The summary of an operator: every implementation on every device with its rank, failures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from kernels_bench_tools.records.build import FrontMatter
from kernels_bench_tools.records.record import Flag, Judged, Status
from kernels_bench_tools.records.summary import DeviceSummary, Row, Summary, WorkloadSummary, geometric_mean
from kernels_bench_tools.results.metrics import metric_infos
from kernels_bench_tools.results.rows import (
    Source,
    ViewRecords,
    group_records,
    implementations,
    make_row,
    median_peaks,
)
from kernels_bench_tools.results.views import in_order, titles_and_keys, workload_summary
from kernels_bench_tools.text import grouped


def summarize(operator: str, title: str, sources: Sequence[Source]) -> Summary:
    """Return the summary of an operator's records; without any, it has no devices."""
    known = implementations(sources)
    devices = groupby(group_records(sources), key=lambda found: found.device.slug)
    views = [view for _, found in devices for view in _device_views(list(found), known)]
    _make_slugs_unique(views)
    return Summary(operator=operator, title=title, devices=views)


def _make_slugs_unique(views: Sequence[DeviceSummary]) -> None:
    """Number the slugs of rows that have the same one: ids of implementations may differ in punctuation only."""
    taken: set[str] = set()
    for row in (row for view in views for row in sorted(view.rows, key=lambda row: row.implementation)):
        slug, again = row.slug, 2
        while row.slug in taken:
            row.slug, again = f"{slug}-{again}", again + 1
        taken.add(row.slug)


def _device_views(found: Sequence[ViewRecords], known: Mapping[str, FrontMatter]) -> list[DeviceSummary]:
    """Return the views of one device. They share its measured peaks, which a process records in one of them."""
    every = [record for one in found for records in one.processes.values() for record in records]
    peaks = median_peaks(every)
    # Records of other harnesses, which are all self-reported, are ranked beside one another.
    only_judged = any(
        record.outcome.ran and (record.judged is not Judged.NOT or record.provenance.harness)
        for record in every
    )
    views = [list(group) for _, group in groupby(found, key=lambda it: it.view)]
    named = titles_and_keys([group[0].view for group in views])
    made = [_view(group, known, peaks, *names) for group, names in zip(views, named, strict=True)]
    for view in made:
        view.rows = ranked(view.rows, view.baseline, only_judged=only_judged)
    return made


def _view(
    found: Sequence[ViewRecords],
    known: Mapping[str, FrontMatter],
    peaks: dict[str, float],
    title: str,
    key: str,
) -> DeviceSummary:
    baseline = _baseline(found, known)
    workloads = _workloads([baseline, *found] if baseline else found)
    name = baseline.implementation if baseline else ""
    rows = [make_row(one, known[one.implementation], workloads, baseline, key) for one in found]
    view = DeviceSummary(
        device=found[0].device,
        view=title,
        key=key,
        baseline=name,
        workloads=workloads,
        ceilings=peaks,
        rows=rows,
    )
    view.metrics = metric_infos(view)
    return view


def _workloads(found: Sequence[ViewRecords]) -> list[WorkloadSummary]:
    """Return the workloads of all records; of each what most implementations recorded."""
    recorded = grouped(
        (name, workload_summary(record.wl)) for one in found for name, record in one.records.items()
    )
    return in_order([max(alike, key=alike.count) for alike in recorded.values()])


def _baseline(found: Sequence[ViewRecords], known: Mapping[str, FrontMatter]) -> ViewRecords | None:
    """Return the declared baseline that passed most workloads of this view, and of several the fastest.

    A slow one, declared by another notebook, would make all others look fast.
    """
    times = {}
    for one in found:
        passed = [it.lat_ms.p50 for it in one.records.values() if it.outcome is Status.OK and it.lat_ms]
        if known[one.implementation].baseline and passed:
            times[one.implementation] = (-len(passed), geometric_mean(passed))
    first = min(times, key=times.__getitem__, default="")
    return next((one for one in found if one.implementation == first), None)


def ranked(rows: Sequence[Row], baseline: str, *, only_judged: bool) -> list[Row]:
    """Return the rows in the order of a table, with ranks. No other function decides who is ranked.

    A row is ranked if it passed every workload that the baseline passed, by its speed-up; without a baseline, if it
    passed every workload that any row passed, by its latency. Approximate rows come after exact ones. Rows that passed
    fewer workloads follow, then those that passed none. Self-reported rows are ranked only if no row is of this package.
    """
    required_of = [row for row in rows if row.implementation == baseline] if baseline else rows
    needed = {point.workload for row in required_of for point in row.points if point.status is Status.OK}
    able = [
        row
        for row in rows
        if needed and needed <= _passed(row) and not (only_judged and row.judged is Judged.NOT)
    ]
    able.sort(key=lambda row: (-(row.speedup or 0), _latency_over(row, needed), row.implementation))
    able.sort(key=_is_approximate)
    others = [row for row in rows if row not in able]
    others.sort(key=lambda row: (row.passed == 0, not _ran(row), -row.passed, row.implementation))
    return [msgspec.structs.replace(row, rank=rank) for rank, row in enumerate(able, start=1)] + others


def _is_approximate(row: Row) -> bool:
    return any(Flag.APPROXIMATE in point.flags for point in row.points)


def _passed(row: Row) -> set[str]:
    return {point.workload for point in row.points if point.status is Status.OK}


def _ran(row: Row) -> bool:
    return any(point.status.ran for point in row.points)


def _latency_over(row: Row, workloads: set[str]) -> float:
    times = [point.p50_ms for point in row.points if point.workload in workloads and point.p50_ms]
    return geometric_mean(times) if times else float("inf")
