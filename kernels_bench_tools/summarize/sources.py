"""Records brought together: which of them speak for which implementation on which device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kernels_bench_tools.schema.build import FrontMatter
from kernels_bench_tools.schema.device import Device, cuda_device
from kernels_bench_tools.schema.record import Failure, Record, Status
from kernels_bench_tools.summarize.merge import by_workload, merge
from kernels_bench_tools.summarize.views import View, group_order, in_view_order, view_of
from kernels_bench_tools.text import slugify, title_from_name

_NOT_A_GPU = frozenset({"", "cpu", "none", "null", "n/a", "unknown"})
NEVER_RUN = "has no record of this device"


class Source(msgspec.Struct, kw_only=True, frozen=True):
    """The records of one file, and what is known about whoever made them."""

    records: list[Record]
    front: FrontMatter | None = None
    """Front matter of the notebook that made them; None for a committed file."""
    page: str = ""
    """URL of the notebook's page, relative to the combined page; empty if it has none."""
    measured_now: bool = False
    """Whether this build made them: they then replace committed ones of the same device."""


class Identity(msgspec.Struct, kw_only=True, frozen=True):
    """What people call an implementation."""

    title: str
    description: str = ""
    family: str = ""
    baseline: bool = False


class Attempt(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that one implementation left in one view of a device."""

    implementation: str
    device: Device
    view: View
    records: dict[str, Record]
    """By the name of the workload, all processes made one."""
    processes: dict[str, list[Record]]
    """By the name of the workload, one for each process that measured it."""
    whole: Record | None
    """Speaks for every workload without a record."""

    def record(self, workload: str) -> Record | None:
        """Return what is known about a workload."""
        return self.records.get(workload, self.whole)

    def representative(self) -> Record | None:
        """Return the record whose environment and provenance stand for all: the first that ran."""
        known = [*self.records.values(), *([self.whole] if self.whole else [])]
        return next((record for record in known if record.outcome.ran), known[0] if known else None)


def whole_record(implementation: str, status: Status, reason: str, device: Device) -> Record:
    """Return a record that speaks for all workloads of a cell; without a time, as it measured none."""
    failure = Failure(type=status.value, msg=reason or f"ended as {status.value}")
    return Record(ts="", run="", impl=implementation, status=status, err=failure, device=device)


def device_of(record: Record) -> Device:
    """Return the device of a record; files older than the field are read by their environment."""
    if record.device is not None:
        return record.device
    gpu = record.env.gpu.strip()
    if gpu.lower() not in _NOT_A_GPU and str(record.wl.get("device", "cuda")).partition(":")[0] != "cpu":
        return cuda_device(gpu, record.env.driver)
    name = record.env.cpu or "CPU"
    return Device(kind="cpu", name=name, slug=slugify(name))


def attempts(sources: Sequence[Source]) -> list[Attempt]:
    """Return one attempt for each device, view and implementation: GPUs first, then by device, view and id.

    Of one device and implementation, records of this build replace committed ones altogether, because
    a row shows one environment; of one process the later record of a workload counts.

    Every implementation has an attempt on every device. It is in the views that it has records in. A record that
    speaks for all workloads puts it into every view of the groups that it computes, as far as its records tell.
    """
    kept, devices = _kept(sources)
    computed = _computed(kept)
    order = group_order(computed.values())
    found = []
    for device in sorted(devices.values(), key=lambda it: (it.kind == "cpu", it.slug)):
        tried = {
            implementation: kept.get((device.slug, implementation)) or [_never_run(implementation, device)]
            for implementation in sorted(computed)
        }
        measured = {view_of(record.wl) for records in tried.values() for record in records if record.workload}
        due = {name: _due(records, computed[name], measured) for name, records in tried.items()}
        for view in in_view_order(set().union(*due.values()), order):
            found += [_attempt(name, device, view, tried[name]) for name in tried if view in due[name]]
    return found


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
    return before | now, devices


def _computed(kept: Mapping[tuple[str, str], Sequence[Record]]) -> dict[str, list[str]]:
    """Return the groups that each implementation has records of, on any device; none where nothing tells."""
    found: dict[str, dict[str, None]] = {}
    for (_, implementation), records in sorted(kept.items()):
        groups = found.setdefault(implementation, {})
        groups |= dict.fromkeys(view_of(record.wl).group for record in records if record.workload)
    return {implementation: list(groups) for implementation, groups in found.items()}


def _never_run(implementation: str, device: Device) -> Record:
    """Return a record that says of an implementation known from elsewhere that this device has none of it."""
    failure = Failure(type=Status.ABSENT.value, msg=NEVER_RUN)
    return Record(ts="", run="", impl=implementation, status=Status.ABSENT, err=failure, device=device)


def _due(records: Sequence[Record], groups: Sequence[str], measured: set[View]) -> set[View]:
    """Return the views of a device that an implementation has a row in, at least one.

    Args:
        records: Its records on the device.
        groups: The groups that it computes; empty where no record tells.
        measured: The views that the device has workloads of.
    """
    own = {view_of(record.wl) for record in records if record.workload}
    if all(record.workload for record in records):
        return own
    if not measured:
        return {View()}
    due = {view for view in measured if not groups or view.group in groups}
    # Nothing of its groups was measured here: they get a view of their own, not a place among other functions.
    return own | due or {View(group) for group in groups}


def _attempt(implementation: str, device: Device, view: View, records: Sequence[Record]) -> Attempt:
    here = [record for record in records if not record.workload or view_of(record.wl) == view]
    processes, whole = by_workload(here)
    return Attempt(
        implementation=implementation,
        device=device,
        view=view,
        records={name: merge(found) for name, found in processes.items()},
        processes=processes,
        whole=whole,
    )


def identities(sources: Iterable[Source]) -> dict[str, Identity]:
    """Return what to call each implementation.

    A notebook's front matter speaks for its implementation; one that holds several only lends them its
    family and description. An implementation whose notebook is gone is called after its id.
    """
    found: dict[str, Identity] = {}
    for source in sorted(sources, key=lambda source: source.front is None):
        own = {record.impl: record for record in source.records}
        front = source.front or FrontMatter()
        for implementation, record in own.items():
            title = front.title if len(own) == 1 else ""
            identity = Identity(
                title=title or title_from_name(implementation),
                description=front.description,
                family=front.family or record.tags.get("family", ""),
                baseline=front.baseline,
            )
            found.setdefault(implementation, identity)
    return found
