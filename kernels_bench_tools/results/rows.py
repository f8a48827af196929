"""From records to rows: the records of one implementation in one view of a device become one row of the summary."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from statistics import median, median_low

import msgspec

from kernels_bench_tools.records.build import FrontMatter
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.foreign import NAME_TAG
from kernels_bench_tools.records.hub import SOURCE_BUILD
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.records.record import (
    Environment,
    Failure,
    Flag,
    Provenance,
    Record,
    Status,
    Work,
    device_of,
)
from kernels_bench_tools.records.roofline import CPU_MARGIN, TRAFFIC_MARGIN, Limits, implausible
from kernels_bench_tools.records.summary import Estimate, Point, Row, WorkloadSummary, geometric_mean_interval
from kernels_bench_tools.results.compare import compare
from kernels_bench_tools.results.merge import (
    by_workload,
    estimate,
    least_trusted,
    limitation_of,
    merge,
)
from kernels_bench_tools.results.metrics import set_metrics
from kernels_bench_tools.results.views import View, group_order, in_view_order, view_of
from kernels_bench_tools.text import grouped, series_slug, title_from_name

_NO_DEVICE = Device(kind="", name="", slug="none")
_OUTLYING = 0.1
"""How far the mean may be above the median. Of committed rows 6 % on a shared CPU are further, and none on H200s."""
_NULL, _CACHE = "null", "l2_bytes"
"""Readings of a device that are no peaks."""
NEVER_RUN = "not measured on this device"
NO_RECORD = "no record of this workload"


class Source(msgspec.Struct, kw_only=True, frozen=True):
    """The records of one cell or file."""

    records: list[Record]
    front: FrontMatter | None = None
    """Front matter of the notebook that made them; None for a committed file."""
    page: str = ""
    """URL of the notebook's page, relative to the combined page; empty if it has none."""
    measured_now: bool = False
    """Whether this build made them: they then replace committed ones of the same device."""


class ViewRecords(msgspec.Struct, kw_only=True, frozen=True):
    """The records of one implementation in one view of a device."""

    implementation: str
    device: Device
    view: View
    records: dict[str, Record]
    """By the name of the workload, all processes merged."""
    processes: dict[str, list[Record]]
    """By the name of the workload, one for each process that measured it."""
    whole: Record | None
    """Record without a workload: it holds for every workload without a record."""

    def record(self, workload: str) -> Record | None:
        """Return the record that holds for a workload."""
        return self.records.get(workload, self.whole)

    def representative(self) -> Record | None:
        """Return the record whose environment and provenance the row shows: the first that ran."""
        known = [*self.records.values(), *([self.whole] if self.whole else [])]
        return next((record for record in known if record.outcome.ran), known[0] if known else None)


def whole_record(implementation: str, status: Status, reason: str, device: Device) -> Record:
    """Return a record without a workload and without a time, which holds for all workloads of a cell."""
    failure = Failure(type=status.value, msg=reason or f"ended as {status.value}")
    return Record(ts="", run="", impl=implementation, status=status, err=failure, device=device)


def group_records(sources: Sequence[Source]) -> list[ViewRecords]:
    """Return the records by device, view and implementation: GPUs first, then by device, view and id.

    Of one device and implementation, records of this build replace committed ones altogether, because a row shows one
    environment. Of one process the later record of a workload counts.

    Every implementation has a row on every device. It is in the views that it has records in. A record without a
    workload puts it into every view of the groups that it has records of anywhere.
    """
    kept, devices = _kept(sources)
    declared = [source.records for source in sources if source.front and source.front.baseline]
    baselines = {record.impl for records in declared for record in records}
    for slug in devices:
        here = {name: records for (device, name), records in kept.items() if device == slug}
        counted = [*here.values(), *(here[name] for name in here.keys() & baselines)]
        devices[slug] = _agreed_device(devices[slug], counted)
        _reject_implausible(list(here.values()), counted, on_cpu=devices[slug].kind == "cpu")
    groups = _groups(kept)
    needs = {it.impl: one.front.requires for one in sources if one.front for it in one.records}
    order = group_order(groups.values())
    found = []
    for device in sorted(devices.values(), key=lambda it: (it.kind == "cpu", it.slug)):
        here = {
            name: kept.get((device.slug, name)) or [_never_run(name, needs.get(name, ()), device)]
            for name in sorted(groups)
        }
        measured = {view_of(record.wl) for records in here.values() for record in records if record.workload}
        views = {name: _views(records, groups[name], measured) for name, records in here.items()}
        for view in in_view_order(set().union(*views.values()), order):
            found += [_merged(here[name], name, device, view) for name in here if view in views[name]]
    return found


def _never_run(name: str, needs: Sequence[str], device: Device) -> Record:
    """Return the record of an implementation without one on a device; ``needs`` are the kinds that it runs on, if not all."""
    if needs and device.kind not in needs:
        kinds = " or ".join(kind.upper() for kind in needs)
        return whole_record(name, Status.UNSUPPORTED, f"needs a {kinds} device", device)
    return whole_record(name, Status.ABSENT, NEVER_RUN, device)


def _kept(sources: Sequence[Source]) -> tuple[dict[tuple[str, str], list[Record]], dict[str, Device]]:
    """Return the records that count by device and implementation, and the devices by slug."""
    now: dict[tuple[str, str], list[Record]] = defaultdict(list)
    before: dict[tuple[str, str], list[Record]] = defaultdict(list)
    devices: dict[str, Device] = {}
    for source in sources:
        for record in source.records:
            device = device_of(record)
            known = devices.setdefault(device.slug, device)
            if device.driver and (not known.driver or source.measured_now):
                devices[device.slug] = device
            (now if source.measured_now else before)[device.slug, record.impl].append(record)
    return {key: _of_one_origin(records) for key, records in (before | now).items()}, devices


def _of_one_origin(records: list[Record]) -> list[Record]:
    """Return the records without those of a hub build if the latest is of a source build, and the other way round."""
    loaded = [record for record in records if record.provenance.hub]
    newest = max(loaded, key=lambda record: record.ts, default=None)
    other = {
        id(record) for record in loaded if newest and _is_source_build(record) is not _is_source_build(newest)
    }
    return [record for record in records if id(record) not in other]


def _agreed_device(device: Device, counted: Iterable[list[Record]]) -> Device:
    """Return the device with the kind and the name that most implementations recorded."""
    names = (dict.fromkeys((it.kind, it.name) for it in map(device_of, records)) for records in counted)
    (kind, name), _ = Counter(chain.from_iterable(names)).most_common(1)[0]
    return msgspec.structs.replace(device, kind=kind, name=name)


def _reject_implausible(
    implementations: list[list[Record]], counted: list[list[Record]], *, on_cpu: bool
) -> None:
    """Give correct records of a device whose time is impossible the status that says so.

    What a process recorded of the device and of the work counts only as far as those of the other implementations agree
    with it. The baseline is among those ``counted`` twice, so that it is right where there is only one other.
    """
    readings = grouped(one for records in counted for one in _readings(records).items())
    common = {name: median_low(values) for name, values in readings.items()}
    works = grouped(
        claim
        for records in counted
        for claim in {(it.workload, (it.work, str(it.wl.get("dtype", "")))) for it in records if it.work}
    )
    agreed = {
        workload: max(found, key=lambda it: (found.count(it), it[0].bytes_moved, it[0].flops))
        for workload, found in works.items()
    }
    null_ms, cache_bytes = common.get(_NULL, 0.0), int(common.get(_CACHE, 0))
    unknown: tuple[Work | None, str] = (None, "")
    margin = CPU_MARGIN if on_cpu else TRAFFIC_MARGIN
    for records in implementations:
        measured = {record.run: record.ceilings for record in records if record.ceilings}
        for number, record in enumerate(records):
            if record.outcome is not Status.OK:
                continue
            own = measured.get(record.run, {})
            peaks = common | {name: min(value, margin * common[name]) for name, value in own.items()}
            work, dtype = agreed.get(record.workload, unknown)
            if why := implausible(record, work, dtype, Limits(peaks, null_ms, cache_bytes, margin)):
                failure = Failure(type="ExceedsPhysics", msg=why)
                records[number] = msgspec.structs.replace(
                    record, status=Status.EXCEEDS_PHYSICS, ok=False, err=failure
                )


def _readings(records: Sequence[Record]) -> dict[str, float]:
    """Return what an implementation recorded of a device: peaks, an empty kernel's milliseconds, and bytes of the cache."""
    found = median_peaks(records)
    if empty := [it.sentinels["null"][0] for it in records if it.sentinels.get("null")]:
        found[_NULL] = median(empty)
    if sizes := [it.env.l2_bytes for it in records if it.env.l2_bytes]:
        found[_CACHE] = max(sizes)
    return found


def median_peaks(records: Iterable[Record]) -> dict[str, float]:
    """Return the median of each measured peak over the processes that the records are of."""
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for record in records:
        for name, value in record.ceilings.items():
            values[name][record.run] = value
    return {name: median(of_run.values()) for name, of_run in sorted(values.items())}


def _groups(kept: Mapping[tuple[str, str], Sequence[Record]]) -> dict[str, list[str]]:
    """Return the groups that each implementation has records of, on any device."""
    found: dict[str, dict[str, None]] = {}
    for (_, implementation), records in sorted(kept.items()):
        groups = found.setdefault(implementation, {})
        groups |= dict.fromkeys(view_of(record.wl).group for record in records if record.workload)
    return {implementation: list(groups) for implementation, groups in found.items()}


def _views(records: Sequence[Record], groups: Sequence[str], measured: set[View]) -> set[View]:
    """Return the views of a device in which an implementation of these groups has a row, at least one."""
    own = {view_of(record.wl) for record in records if record.workload}
    if all(record.workload for record in records):
        return own
    if not measured:
        return {View()}
    computed = {view for view in measured if not groups or view.group in groups}
    # Without a measured view of its groups it gets a view of its own, not a row among other functions.
    return own | computed or {View(group) for group in groups}


def _merged(
    records: Sequence[Record], implementation: str = "", device: Device = _NO_DEVICE, view: View | None = None
) -> ViewRecords:
    """Return the records of one view, or of all, with the processes of each workload merged."""
    here = [record for record in records if not record.workload or view in (None, view_of(record.wl))]
    processes, whole = by_workload(here)
    return ViewRecords(
        implementation=implementation,
        device=device,
        view=view or View(),
        records={workload: merge(found) for workload, found in processes.items()},
        processes=processes,
        whole=whole,
    )


def _is_source_build(record: Record) -> bool:
    """Return whether a hub kernel that a record is of was built from source."""
    return any(kernel.origin == SOURCE_BUILD for kernel in record.provenance.hub)


def implementations(sources: Iterable[Source]) -> dict[str, FrontMatter]:
    """Return the front matter of each implementation's notebook by id, with a title made from the id if it has none."""
    found: dict[str, FrontMatter] = {}
    for source in sorted(sources, key=lambda source: source.front is None):
        own = {record.impl: record for record in source.records}
        front = source.front or FrontMatter()
        for name, record in own.items():
            title = (front.title if len(own) == 1 else "") or title_from_name(record.tags.get(NAME_TAG, name))
            family = front.family or record.tags.get("family", "")
            found.setdefault(name, msgspec.structs.replace(front, title=title, family=family))
    return found


def make_row(
    found: ViewRecords,
    front: FrontMatter,
    workloads: Sequence[WorkloadSummary],
    baseline: ViewRecords | None,
    key: str,
) -> Row:
    """Return the row of an implementation in the view with this key, without its rank."""
    points = [_point(workload.name, found, baseline) for workload in workloads]
    status, reason = _outcome(found, points)
    speedups = [
        Estimate(point.speedup, point.speedup_low or 0.0, point.speedup_high or inf)
        for point in points
        if point.speedup is not None
    ]
    speedup = geometric_mean_interval(speedups) if speedups else None
    origin = found.representative()
    return Row(
        implementation=found.implementation,
        slug="-".join(filter(None, (series_slug(found.implementation, found.device.slug), key))),
        title=front.title,
        description=front.description,
        family=front.family,
        baseline=front.baseline if baseline is None else found is baseline,
        status=status,
        reason=reason,
        passed=sum(point.status is Status.OK for point in points),
        total=len(points),
        speedup=speedup.value if speedup else None,
        speedup_low=speedup.low if speedup and speedup.known else None,
        speedup_high=speedup.high if speedup and speedup.known else None,
        speedup_workloads=len(speedups),
        trust=origin.trust if origin else "",
        judged=least_trusted(record for records in found.processes.values() for record in records),
        points=points,
        environment=origin.env if origin else Environment(),
        provenance=origin.provenance if origin else Provenance(),
        tags=origin.tags if origin else {},
    )


def _outcome(found: ViewRecords, points: Sequence[Point]) -> tuple[Status, str]:
    """Return the status and reason of a row: those of its first workload that is not ok, if there is one."""
    for point in points:
        if point.status is not Status.OK:
            return point.status, point.reason
    if points:
        return Status.OK, ""
    if found.whole is not None and found.whole.outcome is not Status.OK:
        return found.whole.outcome, reason_of(found.whole)
    return Status.INVALID, "no record of any workload"


def _point(workload: str, found: ViewRecords, baseline: ViewRecords | None) -> Point:
    record = found.record(workload)
    if record is None:
        return Point(workload=workload, status=Status.INVALID, reason=NO_RECORD)
    records = found.processes.get(workload, [])
    other = baseline.processes.get(workload, []) if baseline is not None else []
    speedup, processes = compare(records, other), max(len(records), 1)
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
        flags=[*record.flags, *([Flag.OUTLIERS] if _has_outliers(record) else [])],
        limitation=limitation_of(records),
        runs=1 + record.earlier_runs,
        span_ms=record.span_ms,
        measured=record.ts,
    )
    set_metrics(point, record)
    if record.roofline and point.fraction is not None:
        point.ceiling = record.roofline.ceiling
    latency = record.lat_ms
    if latency is not None:
        point.mean_ms, point.p10_ms, point.p90_ms = latency.mean, latency.p10, latency.p90
        # A record merged from several processes has the interval over them; of one process it may have to be computed.
        known = estimate([record]) if processes == 1 else None
        ends = (known.low, known.high) if known and known.known else (None, None)
        point.ci_low_ms, point.ci_high_ms = ends if processes == 1 else (latency.ci_low, latency.ci_high)
        point.reps, point.timer, point.cache = latency.reps, latency.timer, latency.cache
    return point


def _has_outliers(record: Record) -> bool:
    latency = record.lat_ms
    return latency is not None and (latency.mean or 0.0) > latency.p50 * (1 + _OUTLYING)


class Comparison(Point, kw_only=True):
    """A candidate and its baseline on one workload, as ``kbt run`` prints them."""

    baseline_ms: float | None = None
    """Median of the baseline; None if it has no rank on this workload."""
    baseline_status: Status = Status.ABSENT
    """Status of the baseline's record; ``absent`` if there is none."""


def compare_records(records: Sequence[Record], baseline: Sequence[Record]) -> list[Comparison]:
    """Return a row for each workload, in the order of the candidate's records.

    A candidate's record without a workload holds for every workload without a record. Without such a record, workloads
    that only the baseline has are left out.
    """
    ours, theirs = (_merged(side) for side in (records, baseline))
    names = list(ours.processes)
    if ours.whole is not None:
        names += [name for name in theirs.processes if name not in names]
    return [_comparison(name, ours, theirs) for name in names or [""] * (ours.whole is not None)]


def _comparison(workload: str, ours: ViewRecords, theirs: ViewRecords) -> Comparison:
    point = _point(workload, ours, theirs)
    baseline = theirs.records.get(workload)
    status = baseline.outcome if baseline else Status.ABSENT
    latency = baseline.lat_ms if baseline and status is Status.OK else None
    return Comparison(
        **msgspec.structs.asdict(point), baseline_ms=latency.p50 if latency else None, baseline_status=status
    )
