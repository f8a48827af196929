"""The summary of an operator: every implementation on every device with its rank, failures included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

import msgspec

from kernels_bench_tools.records.build import FrontMatter
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Flag, Judged, Record, Status
from kernels_bench_tools.records.summary import DeviceSummary, Row, Summary, WorkloadSummary, geometric_mean
from kernels_bench_tools.results.metrics import metric_infos
from kernels_bench_tools.results.rows import ViewRecords, make_row, of_workloads, pairs_of, view_records
from kernels_bench_tools.results.sources import Source, counted_records, implementations, median_peaks
from kernels_bench_tools.results.views import (
    View,
    group_order,
    in_order,
    in_view_order,
    titles_and_keys,
    view_of,
    workload_summary,
)
from kernels_bench_tools.text import grouped


def summarize(operator: str, title: str, sources: Sequence[Source], *, pairs: bool = False) -> Summary:
    """Return the summary of an operator's records; without any, it has no devices.

    With ``pairs``, any two implementations of a view are compared, too.

    Every implementation has a row on every device. It is in the views that it has records in. A record without a
    workload puts it into every view of the groups that it has records of anywhere.
    """
    known, devices = implementations(sources), counted_records(sources)
    by_name = grouped(
        (name, record)
        for found in sorted(devices, key=lambda found: found.device.slug)
        for name, records in found.implementations.items()
        for record in records
    )
    groups = {name: list(dict.fromkeys(view.group for view in _views(by_name[name]))) for name in by_name}
    order = group_order(groups.values())
    made: list[DeviceSummary] = []
    for found in devices:
        here = found.implementations
        measured = {view for records in here.values() for view in _views(records)}
        shown = {name: _views_of(records, groups[name], measured) for name, records in here.items()}
        views = {
            view: [view_records(name, here[name], view) for name in here if view in shown[name]]
            for view in in_view_order(set().union(*shown.values()), order)
        }
        made += _device_views(found.device, views, known, pairs)
    _make_slugs_unique(made)
    return Summary(operator=operator, title=title, devices=made)


def _views(records: Iterable[Record]) -> dict[View, None]:
    return dict.fromkeys(view_of(record.wl) for record in records if record.workload)


def _views_of(records: Sequence[Record], groups: Sequence[str], measured: set[View]) -> set[View]:
    """Return the views of a device in which an implementation of these groups has a row, at least one."""
    own = set(_views(records))
    if all(record.workload for record in records):
        return own
    if not measured:
        return {View()}
    computed = {view for view in measured if not groups or view.group in groups}
    # Without a measured view of its groups it gets a view of its own, not a row among other functions.
    return own | computed or {View(group) for group in groups}


def _make_slugs_unique(views: Sequence[DeviceSummary]) -> None:
    """Number the slugs of rows that have the same one: ids of implementations may differ in punctuation only."""
    taken: set[str] = set()
    for row in (row for view in views for row in sorted(view.rows, key=lambda row: row.implementation)):
        slug, again = row.slug, 2
        while row.slug in taken:
            row.slug, again = f"{slug}-{again}", again + 1
        taken.add(row.slug)


def _device_views(
    device: Device, views: Mapping[View, Sequence[ViewRecords]], known: Mapping[str, FrontMatter], pairs: bool
) -> list[DeviceSummary]:
    """Return the views of one device. They share its measured peaks, which a process records in one of them."""
    every = [
        record
        for found in views.values()
        for one in found
        for records in one.processes.values()
        for record in records
    ]
    # Records of other harnesses, which are all self-reported, are ranked beside one another.
    only_judged = any(
        record.outcome.ran and (record.judged is not Judged.NOT or record.provenance.harness)
        for record in every
    )
    made = []
    for found, (title, key) in zip(views.values(), titles_and_keys([*views]), strict=True):
        baseline = _baseline(found, known)
        workloads = _workloads(baseline, found)
        name = baseline.implementation if baseline else ""
        found = [of_workloads(one, workloads) for one in found]
        baseline = next((one for one in found if one.implementation == name), None)
        rows = [make_row(one, known[one.implementation], device, key, workloads, baseline) for one in found]
        view = DeviceSummary(
            device=device,
            view=title,
            key=key,
            baseline=name,
            workloads=workloads,
            ceilings=median_peaks(every),
            rows=ranked(rows, name, only_judged=only_judged),
        )
        view.metrics = metric_infos(view)
        view.pairs = pairs_of(device, found, view.rows) if pairs else []
        made.append(view)
    return made


def _workloads(baseline: ViewRecords | None, found: Sequence[ViewRecords]) -> list[WorkloadSummary]:
    """Return the workloads of all records; each as the baseline recorded it, else as most implementations did."""
    recorded = grouped(
        (name, workload_summary(record.wl)) for one in found for name, record in one.records.items()
    )
    declared = baseline.records if baseline else {}
    return in_order(
        [
            workload_summary(declared[name].wl) if name in declared else max(alike, key=alike.count)
            for name, alike in recorded.items()
        ]
    )


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
    passed = {
        row.implementation: {point.workload for point in row.points if point.status is Status.OK}
        for row in rows
    }
    needed = passed.get(baseline, set()) if baseline else set().union(*passed.values())

    def latency(row: Row) -> float:
        times = [point.p50_ms for point in row.points if point.workload in needed and point.p50_ms]
        return geometric_mean(times) if times else inf

    able = [
        row
        for row in rows
        if needed <= passed[row.implementation] and not (only_judged and row.judged is Judged.NOT)
    ]
    able = able if needed else []
    able.sort(key=lambda row: (-(row.speedup or 0), latency(row), row.implementation))
    able.sort(key=lambda row: any(Flag.APPROXIMATE in point.flags for point in row.points))
    others = [row for row in rows if row not in able]
    others.sort(
        key=lambda row: (
            row.passed == 0,
            not any(point.status.ran for point in row.points),
            -row.passed,
            row.implementation,
        )
    )
    return [msgspec.structs.replace(row, rank=rank) for rank, row in enumerate(able, start=1)] + others
