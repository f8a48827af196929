"""Which records of an operator count, on which device, and whether their times are possible there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median, median_low

import msgspec

from kernels_bench_tools.records.committed import NAME_TAG
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.hub import SOURCE_BUILD
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Failure, Record, Status, Work, device_of
from kernels_bench_tools.records.roofline import CPU_MARGIN, TRAFFIC_MARGIN, Limits, implausible
from kernels_bench_tools.results.views import DRAWN, view_of
from kernels_bench_tools.text import grouped, title_from_name

_NULL, _CACHE = "null", "l2_bytes"
"""Readings of a device that are no peaks."""
NEVER_RUN = "not measured on this device"


class Source(msgspec.Struct, kw_only=True, frozen=True):
    records: list[Record]
    front: FrontMatter | None = None
    """Front matter of the notebook that made them; None for a committed file."""
    page: str = ""
    """URL of the notebook's page, relative to the combined page; empty if it has none."""
    measured_now: bool = False
    """Whether this build made them: they then replace committed ones of the same device."""


class DeviceRecords(msgspec.Struct, kw_only=True, frozen=True):
    device: Device
    implementations: dict[str, list[Record]]
    """By id, sorted. One that was not measured here has a record without a workload that says so."""


def whole_record(implementation: str, status: Status, reason: str, device: Device) -> Record:
    """Return a record without a workload and without a time, which holds for all workloads of a cell."""
    failure = Failure(type=status.value, msg=reason or f"ended as {status.value}")
    return Record(ts="", run="", impl=implementation, status=status, err=failure, device=device)


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


def counted_records(sources: Sequence[Source]) -> list[DeviceRecords]:
    """Return the records that count by device: GPUs first, then those with most of them.

    Of one device and implementation, records of this build replace committed ones altogether, because a row shows one
    environment; those of drawn workloads replace only such ones. Correct records whose time is impossible get the status that
    says so. A device does not count if none of its implementations was measured although some can be.
    """
    absent = {
        (device_of(it).slug, it.impl) for one in sources for it in one.records if it.outcome is Status.ABSENT
    }
    now: dict[tuple[str, str, bool], list[Record]] = defaultdict(list)
    before: dict[tuple[str, str, bool], list[Record]] = defaultdict(list)
    devices: dict[str, Device] = {}
    for source in sources:
        for record in source.records:
            device = device_of(record)
            if (device.slug, record.impl) in absent:
                continue
            known = devices.setdefault(device.slug, device)
            if device.driver and (not known.driver or source.measured_now):
                devices[device.slug] = device
            is_drawn = view_of(record.wl).set == DRAWN
            (now if source.measured_now else before)[device.slug, record.impl, is_drawn].append(record)
    kept: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for (slug, name, _), records in (before | now).items():
        kept[slug, name] += _of_one_origin(records)
    baselines = {it.impl for one in sources if one.front and one.front.baseline for it in one.records}
    needs = {it.impl: one.front.requires for one in sources if one.front for it in one.records}
    names = sorted({name for _, name in kept.keys() | absent})
    unmeasured = {slug for slug, _ in absent}
    found = []
    for slug, device in devices.items():
        here = {name: records for (on, name), records in kept.items() if on == slug}
        if slug in unmeasured and not any(it.workload for some in here.values() for it in some):
            continue
        # The baseline counts twice, so that it is right where there is only one other.
        counted = [*here.values(), *(here[name] for name in here.keys() & baselines)]
        recorded = (dict.fromkeys((it.kind, it.name) for it in map(device_of, some)) for some in counted)
        (kind, name), _ = Counter(chain.from_iterable(recorded)).most_common(1)[0]
        device = msgspec.structs.replace(device, kind=kind, name=name)
        _reject_implausible(list(here.values()), counted, on_cpu=kind == "cpu")
        made = {name: here.get(name) or [_never_run(name, needs.get(name, ()), device)] for name in names}
        found.append(DeviceRecords(device=device, implementations=made))
    rows = {one.device.slug: -sum(map(len, one.implementations.values())) for one in found}
    return sorted(found, key=lambda it: (it.device.kind == "cpu", rows[it.device.slug], it.device.slug))


def _never_run(name: str, needs: Sequence[str], device: Device) -> Record:
    """Return the record of an implementation without one on a device; ``needs`` are the kinds that it runs on, if not all."""
    if needs and device.kind not in needs:
        kinds = " or ".join(kind.upper() for kind in needs)
        return whole_record(name, Status.UNSUPPORTED, f"needs a {kinds} device", device)
    return whole_record(name, Status.ABSENT, NEVER_RUN, device)


def _of_one_origin(records: list[Record]) -> list[Record]:
    """Return the records without those of a hub build if the latest is of a source build, and the other way round."""

    def is_source_build(record: Record) -> bool:
        return any(kernel.origin == SOURCE_BUILD for kernel in record.provenance.hub)

    loaded = [record for record in records if record.provenance.hub]
    if not loaded:
        return records
    newest = is_source_build(max(loaded, key=lambda record: record.ts))
    return [record for record in records if not record.provenance.hub or is_source_build(record) is newest]


def _reject_implausible(
    implementations: list[list[Record]], counted: list[list[Record]], *, on_cpu: bool
) -> None:
    """Give correct records of a device whose time is impossible the status that says so.

    What a process recorded of the device and of the work counts only as far as those of the other implementations agree
    with it.
    """
    readings = grouped(reading for records in counted for reading in _readings(records).items())
    common = {name: median_low(values) for name, values in readings.items()}
    works = grouped(
        claim
        for records in counted
        for claim in {(it.workload, (it.work, str(it.wl.get("dtype", "")))) for it in records if it.work}
    )
    agreed = {
        workload: max(claims, key=lambda it: (claims.count(it), it[0].bytes_moved, it[0].flops))
        for workload, claims in works.items()
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
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for record in records:
        for name, value in record.ceilings.items():
            values[name][record.run] = value
    return {name: median(of_run.values()) for name, of_run in sorted(values.items())}
