"""The summary of an operator: every implementation on every device with its rank, failures included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median

import msgspec

from kernels_bench_tools.estimate import geometric_mean, geometric_mean_interval
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.records.record import NOT_COMPARED, Failure, Flag, Judged, Record, Status
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    GENERAL,
    DeviceSummary,
    OverOthers,
    Pair,
    Point,
    Ratio,
    Row,
    Summary,
    Verdict,
    WorkloadSummary,
)
from kernels_bench_tools.results.counted import Source, counted_records, implementations, median_peaks
from kernels_bench_tools.results.metrics import metric_infos, set_metrics
from kernels_bench_tools.results.processes import by_workload, estimate, limitation_of, merge
from kernels_bench_tools.results.speedup import speedup_over
from kernels_bench_tools.results.tables import measured_rows
from kernels_bench_tools.results.views import (
    DRAWN,
    View,
    group_order,
    in_order,
    in_view_order,
    titles_and_keys,
    view_of,
    workload_summary,
)
from kernels_bench_tools.stats import ratio_of, verdict_of
from kernels_bench_tools.text.names import make_unique, series_slug
from kernels_bench_tools.text.tables import grouped

_OUTLYING = 0.1
"""How far the mean may be above the median. Of committed rows 6 % on a shared CPU are further, and none on H200s."""
NO_RECORD = "no record of this workload"


class ViewRecords(msgspec.Struct, kw_only=True, frozen=True):
    implementation: str
    processes: dict[str, list[Record]]
    """By the name of the workload, one for each process that measured it."""
    records: dict[str, Record]
    """By the name of the workload, all processes merged."""
    whole: Record | None
    """Record without a workload: it holds for every workload without a record."""


def view_records(implementation: str, records: Sequence[Record], view: View | None = None) -> ViewRecords:
    """Return an implementation's records of one view, or of all, with the processes of each workload merged."""
    here = [record for record in records if not record.workload or view in (None, view_of(record.wl))]
    processes, whole = by_workload(here)
    merged = {workload: merge(of_workload) for workload, of_workload in processes.items()}
    return ViewRecords(implementation=implementation, processes=processes, records=merged, whole=whole)


def of_workloads(candidate: ViewRecords, workloads: Iterable[WorkloadSummary]) -> ViewRecords:
    """Return the records, without the times of those whose axes or type are not those of the workload of their name."""
    expected = {workload.name: workload for workload in workloads}
    records, processes = dict(candidate.records), dict(candidate.processes)
    for name, measured in candidate.processes.items():
        differences = (_difference(record, expected[name]) for record in measured if name in expected)
        what = next(filter(None, differences), "")
        if what and records[name].outcome is Status.OK:
            records[name] = msgspec.structs.replace(
                records[name],
                status=Status.INVALID,
                ok=False,
                err=Failure(type="OtherWorkload", msg=what),
                lat_ms=None,
                quantities=None,
                roofline=None,
            )
            processes[name] = [records[name]]
    return msgspec.structs.replace(candidate, records=records, processes=processes)


def _difference(record: Record, workload: WorkloadSummary) -> str:
    """Return how a record's workload differs from the one of its name; what either does not say is no difference."""
    own, pairs = workload_summary(record.wl), dict[str, tuple[object, object]]()
    if own.dtype and workload.dtype:
        pairs["dtype"] = own.dtype.removeprefix("torch."), workload.dtype.removeprefix("torch.")
    if own.axes and workload.axes:
        pairs |= {name: (own.axes.get(name), workload.axes.get(name)) for name in workload.axes | own.axes}
    differing = [
        f"{name}={ours!r}, expected {theirs!r}" for name, (ours, theirs) in pairs.items() if ours != theirs
    ]
    return f"workload {workload.name} differs: {'; '.join(differing)}" if differing else ""


def make_row(
    candidate: ViewRecords,
    front: FrontMatter,
    device: Device,
    key: str,
    workloads: Sequence[WorkloadSummary],
    baseline: ViewRecords | None,
) -> Row:
    """Return the row of an implementation in the view with this key, without its rank."""
    points = [_point(workload.name, candidate, baseline) for workload in workloads]
    gains = [point.gain for point in points if point.gain]
    overall = geometric_mean_interval(gains) if gains else None
    speedup, low, high = (overall.value, *overall.ends) if overall else (None, None, None)
    known = [*candidate.records.values(), candidate.whole or Record(ts="", run="", impl="")]
    origin = next((record for record in known if record.outcome.ran), known[0])
    status, reason = Status.OK, ""
    if failed := [point for point in points if point.status is not Status.OK]:
        first = min(failed, key=lambda point: point.status.passed)
        status, reason = first.status, first.reason
    elif not points:  # of a view without workloads, in which each has a record that says why
        assert candidate.whole
        status, reason = candidate.whole.outcome, reason_of(candidate.whole)
    trust = (record.judged for record in candidate.records.values())
    return Row(
        implementation=candidate.implementation,
        slug="-".join(filter(None, (series_slug(candidate.implementation, device.slug), key))),
        title=front.title,
        description=front.description,
        family=front.family,
        baseline=front.baseline if baseline is None else candidate is baseline,
        status=status,
        reason=reason,
        passed=sum(point.status.passed for point in points),
        total=len(points),
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        speedup_workloads=len(gains),
        trust=origin.trust,
        judged=max(trust, key=lambda judged: judged.place, default=Judged.IN_PROCESS),
        points=points,
        environment=origin.env,
        provenance=origin.provenance,
        tags=origin.tags,
    )


def _point(workload: str, candidate: ViewRecords, baseline: ViewRecords | None) -> Point:
    record = candidate.records.get(workload, candidate.whole)
    if record is None:
        return Point(workload=workload, status=Status.INVALID, reason=NO_RECORD)
    records = candidate.processes.get(workload, [])
    speedup = speedup_over(records, baseline.processes.get(workload, []) if baseline else [])
    processes, latency = max(len(records), 1), record.lat_ms
    outlying = latency is not None and (latency.mean or 0.0) > latency.p50 * (1 + _OUTLYING)
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
        flags=[*record.flags, *([Flag.OUTLIERS] if outlying else [])],
        limitation=limitation_of(records),
        runs=1 + record.earlier_runs,
        span_ms=record.span_ms,
        measured=record.ts,
    )
    set_metrics(point, record)
    if record.roofline and point.fraction is not None:
        point.ceiling = record.roofline.ceiling
    if latency is not None:
        point.mean_ms, point.p10_ms, point.p90_ms = latency.mean, latency.p10, latency.p90
        # A record merged from several processes has the interval over them; of one process it may have to be computed.
        point.ci_low_ms, point.ci_high_ms = latency.ci_low, latency.ci_high
        if processes == 1:
            time = estimate([record])
            point.ci_low_ms, point.ci_high_ms = time.ends if time else (None, None)
        point.reps, point.timer, point.cache = latency.reps, latency.timer, latency.cache
    return point


class ComparedPoint(Point, kw_only=True):
    """A candidate on one workload, compared with its baseline, as ``kbt run`` prints it."""

    baseline_ms: float | None = None
    """Median of the baseline; None if it did not pass this workload."""
    baseline_status: Status = Status.ABSENT
    """Status of the baseline's record; ``absent`` if there is none."""


def compare_records(records: Sequence[Record], baseline: Sequence[Record]) -> list[ComparedPoint]:
    """Return a point for each workload, in the order of the candidate's records.

    A candidate's record without a workload holds for every workload without a record. Without such a record, workloads
    that only the baseline has are left out.
    """
    ours, theirs = view_records("", records), view_records("", baseline)
    ours = of_workloads(ours, [workload_summary(record.wl) for record in theirs.records.values()])
    workloads = list(ours.processes)
    if ours.whole is not None:
        workloads = list(ours.processes | theirs.processes) or [""]
    points = []
    for workload in workloads:
        other = theirs.records.get(workload)
        point = ComparedPoint(**msgspec.structs.asdict(_point(workload, ours, theirs)))
        point.baseline_status = other.outcome if other else Status.ABSENT
        point.baseline_ms = other.lat_ms.p50 if other and other.lat_ms and other.outcome.passed else None
        points.append(point)
    return points


_OPPOSITE = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


def pairs_of(view: DeviceSummary, candidates: Sequence[ViewRecords]) -> list[Pair]:
    """Return each two rows with a time, in the order of the rows."""
    records = {candidate.implementation: candidate for candidate in candidates}
    return [
        _pair(view.device, row, over, records[row.implementation], records[over.implementation])
        for row, over in combinations(measured_rows(view), 2)
    ]


def reversed_pair(pair: Pair) -> Pair:
    """Return the same comparison seen from the other implementation."""
    ratios, overall = [_inverse(ratio) for ratio in pair.ratios], _inverse(pair.overall)
    return Pair(implementation=pair.over, over=pair.implementation, ratios=ratios, overall=overall)


def _inverse(ratio: Ratio) -> Ratio:
    value, low, high = (end and 1 / end for end in (ratio.value, ratio.high, ratio.low))
    verdict = _OPPOSITE.get(ratio.verdict, ratio.verdict)
    return msgspec.structs.replace(ratio, value=value, low=low, high=high, verdict=verdict)


def _pair(device: Device, row: Row, over: Row, ours: ViewRecords, theirs: ViewRecords) -> Pair:
    ratios = [
        _ratio(point, other, ours, theirs) for point, other in zip(row.points, over.points, strict=True)
    ]
    overall = Ratio()
    if gains := [gain for ratio in ratios if (gain := ratio.gain)]:
        mean = geometric_mean_interval(gains)
        verdicts = {ratio.verdict for ratio in ratios}
        if Verdict.FEW_PROCESSES in verdicts:
            verdict = Verdict.FEW_PROCESSES
        elif not mean.known and Verdict.SEPARATE in verdicts:
            verdict = Verdict.SEPARATE
        else:
            verdict = verdict_of(mean, on_cpu=device.kind == "cpu")
        overall = Ratio.of(mean, verdict, separate=any(ratio.separate for ratio in ratios))
    return Pair(implementation=row.implementation, over=over.implementation, ratios=ratios, overall=overall)


def _ratio(point: Point, over: Point, ours: ViewRecords, theirs: ViewRecords) -> Ratio:
    direct = speedup_over(*(side.processes.get(point.workload, []) for side in (ours, theirs)))
    if direct.verdict is not Verdict.SEPARATE or direct.value is None:
        return direct
    # Measured at different times: the baseline is what both were compared with.
    if not (point.gain and over.gain and point.gain.known and over.gain.known):
        return Ratio(value=direct.value, verdict=Verdict.SEPARATE, separate=True)
    ratio = ratio_of(point.gain, over.gain)
    few = min(point.processes, over.processes) < FEWEST_PROCESSES
    return Ratio.of(ratio, Verdict.FEW_PROCESSES if few else verdict_of(ratio), separate=True)


def summarize(operator: str, title: str, sources: Sequence[Source], *, pairs: bool = False) -> Summary:
    """Return the summary of an operator's records; without any, it has no devices.

    With ``pairs``, any two implementations of a view are compared, too.

    Every implementation has a row on every device. It is in the views that it has records in. A record without a
    workload puts it into every view of the groups that it has records of anywhere.
    """
    fronts, devices = implementations(sources), counted_records(sources)
    by_name = grouped(
        (name, record)
        for on_device in sorted(devices, key=lambda it: it.device.slug)
        for name, records in on_device.implementations.items()
        for record in records
    )
    groups = {name: _groups(records) for name, records in by_name.items()}
    ranked_views: list[DeviceSummary] = []
    drawn_views: list[DeviceSummary] = []
    for on_device in devices:
        here = on_device.implementations
        # Of this device alone, or what was measured on another one would change the headline of this one.
        order = group_order(map(_groups, here.values()))
        measured = {view for records in here.values() for view in _views(records)}
        shown = {name: _views_of(records, groups[name], measured) for name, records in here.items()}
        views = {
            view: [view_records(name, here[name], view) for name in here if view in shown[name]]
            for view in in_view_order(set().union(*shown.values()), order)
        }
        usual = {view: candidates for view, candidates in views.items() if view.set != DRAWN}
        drawn = {view: candidates for view, candidates in views.items() if view.set == DRAWN}
        ranked_views += _device_views(on_device.device, usual, fronts, pairs)
        drawn_views += _device_views(on_device.device, drawn, fronts, pairs=False)
    _make_slugs_unique(ranked_views + drawn_views)
    _compare_drawn(ranked_views, drawn_views)
    return Summary(operator=operator, title=title, devices=ranked_views, drawn=drawn_views)


def _compare_drawn(views: Sequence[DeviceSummary], drawn: Sequence[DeviceSummary]) -> None:
    """Add to all rows how they compare with the fastest exact and ranked kind of row at drawn workloads."""

    def key(view: DeviceSummary, row: Row) -> tuple[str, ...]:
        first = next(iter(view.workloads), WorkloadSummary(name=""))
        return view.device.slug, first.group, first.mode, row.implementation

    ratios: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for view in drawn:
        for points in zip(*(row.points for row in view.rows), strict=True):
            passed = [
                (row, point, point.p50_ms)
                for row, point in zip(view.rows, points, strict=True)
                if point.status is Status.OK and point.p50_ms and Flag.ZEROS_PASS not in point.flags
            ]
            for row, _, ms in passed:
                others = [
                    other_ms
                    for other, point, other_ms in passed
                    if other is not row
                    and Flag.APPROXIMATE not in point.flags
                    and (other.judged is not Judged.NOT or row.judged is Judged.NOT)
                ]
                if others:
                    ratios[key(view, row)].append(min(others) / ms)
    for view in (*views, *drawn):
        for row in view.rows:
            if of_row := ratios.get(key(view, row)):
                row.drawn = OverOthers(
                    ratios=sorted(round(ratio, 4) for ratio in of_row),
                    median=median(of_row),
                    share=sum(ratio >= GENERAL for ratio in of_row) / len(of_row),
                )


def _views(records: Iterable[Record]) -> dict[View, None]:
    return dict.fromkeys(view_of(record.wl) for record in records if record.workload)


def _groups(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(view.group for view in _views(records)))


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
        row.slug = make_unique(row.slug, taken)
        taken.add(row.slug)


def _device_views(
    device: Device,
    views: Mapping[View, Sequence[ViewRecords]],
    fronts: Mapping[str, FrontMatter],
    pairs: bool,
) -> list[DeviceSummary]:
    """Return the views of one device. They share its measured peaks, which a process records in one of them."""
    every = [
        record
        for candidates in views.values()
        for candidate in candidates
        for records in candidate.processes.values()
        for record in records
    ]
    # Records of other harnesses, which are all self-reported, are ranked beside one another.
    only_judged = any(
        record.outcome.ran and (record.judged is not Judged.NOT or record.provenance.harness)
        for record in every
    )
    summaries = []
    for recorded, (title, key) in zip(views.values(), titles_and_keys([*views]), strict=True):
        declared = _baseline(recorded, fronts)
        workloads = _workloads(declared, recorded)
        candidates = [of_workloads(candidate, workloads) for candidate in recorded]
        baseline = candidates[recorded.index(declared)] if declared else None
        rows = [
            make_row(candidate, fronts[candidate.implementation], device, key, workloads, baseline)
            for candidate in candidates
        ]
        name = baseline.implementation if baseline else ""
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
        view.pairs = pairs_of(view, candidates) if pairs else []
        summaries.append(view)
    return summaries


def _workloads(baseline: ViewRecords | None, candidates: Sequence[ViewRecords]) -> list[WorkloadSummary]:
    """Return the workloads of all records; each as the baseline recorded it, else as most implementations did."""
    recorded = grouped(
        (name, workload_summary(record.wl))
        for candidate in candidates
        for name, record in candidate.records.items()
    )
    declared = baseline.records if baseline else {}
    return in_order(
        [
            workload_summary(declared[name].wl) if name in declared else max(alike, key=alike.count)
            for name, alike in recorded.items()
        ]
    )


def _baseline(candidates: Sequence[ViewRecords], fronts: Mapping[str, FrontMatter]) -> ViewRecords | None:
    """Return the declared baseline that passed most workloads of this view, and of several the fastest.

    A slow one, declared by another notebook, would make all others look fast.
    """
    places = {}
    for candidate in candidates:
        records = candidate.records.values()
        passed = [it.lat_ms.p50 for it in records if it.outcome is Status.OK and it.lat_ms]
        if fronts[candidate.implementation].baseline and passed:
            places[candidate.implementation] = -len(passed), geometric_mean(passed)
    first = min(places, key=places.__getitem__, default="")
    return next((candidate for candidate in candidates if candidate.implementation == first), None)


def ranked(rows: Sequence[Row], baseline: str, *, only_judged: bool) -> list[Row]:
    """Return the rows in the order of a table, with ranks. No other function decides who is ranked.

    A row is ranked if it passed every workload that the baseline passed, by its speed-up; without a baseline, if it
    passed every workload that any row passed, by its latency. Those on which zeros pass do not count. Approximate rows come after exact ones. Rows that passed
    fewer workloads follow, then those that passed none. Self-reported rows are ranked only if no row is of this package.
    """
    passed = {
        row.implementation: {
            point.workload
            for point in row.points
            if point.status is Status.OK and NOT_COMPARED.isdisjoint(point.flags)
        }
        for row in rows
    }
    needed = passed.get(baseline, set()) if baseline else set().union(*passed.values())

    def place(row: Row) -> tuple[bool, float, float, str]:
        approximate = any(Flag.APPROXIMATE in point.flags for point in row.points)
        times = [point.p50_ms for point in row.points if point.workload in needed and point.p50_ms]
        return approximate, -(row.speedup or 0), geometric_mean(times), row.implementation

    def place_without_rank(row: Row) -> tuple[bool, bool, int, str]:
        ran = any(point.status.ran for point in row.points)
        return row.passed == 0, not ran, -row.passed, row.implementation

    able = [
        row
        for row in rows
        if needed and needed <= passed[row.implementation] and not (only_judged and row.judged is Judged.NOT)
    ]
    others = [row for row in rows if row not in able]
    in_rank = [
        msgspec.structs.replace(row, rank=rank) for rank, row in enumerate(sorted(able, key=place), start=1)
    ]
    return in_rank + sorted(others, key=place_without_rank)
