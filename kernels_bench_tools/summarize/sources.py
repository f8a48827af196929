"""Records brought together: which of them speak for which implementation on which device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from kernels_bench_tools.devices import Device, cuda_device
from kernels_bench_tools.naming import slugify, title_from_name
from kernels_bench_tools.records import Record
from kernels_bench_tools.runs import FrontMatter
from kernels_bench_tools.summarize.processes import by_workload, merge

_NOT_A_GPU = frozenset({"", "cpu", "none", "null", "n/a", "unknown"})


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
    """Everything that one implementation left on one device."""

    implementation: str
    device: Device
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
    """Return one attempt for each device and implementation, GPUs first, then by device and id.

    Of one device and implementation, records of this build replace committed ones altogether, because
    a row shows one environment; of one process the later record of a workload counts.
    """
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
    found = []
    for slug, implementation in now | before:
        processes, whole = by_workload(now.get((slug, implementation)) or before[slug, implementation])
        found.append(
            Attempt(
                implementation=implementation,
                device=devices[slug],
                records={name: merge(records) for name, records in processes.items()},
                processes=processes,
                whole=whole,
            )
        )
    return sorted(found, key=lambda it: (it.device.kind == "cpu", it.device.slug, it.implementation))


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
