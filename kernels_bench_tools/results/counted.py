"""Records that count: those that the cells of a build have made, and the committed ones. Everybody reads them here.

A combine cell, the summaries of pages, ``kbt choose``, ``run``, ``gate`` and ``list``, the details and the problems of
pages get the same records of an operator, so that they give the same answers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from statistics import median, median_low
from typing import NamedTuple

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.records.build import BuildRun
from kernels_bench_tools.records.codec import read_committed, read_records
from kernels_bench_tools.records.committed import NAME_TAG, cell_owner, owner_of, record_files
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.hub import SOURCE_BUILD
from kernels_bench_tools.records.notebook import FrontMatter, is_implementation, operator_of
from kernels_bench_tools.records.record import Failure, Record, Status, Work, device_of
from kernels_bench_tools.records.roofline import CPU_MARGIN, TRAFFIC_MARGIN, Limits, implausible
from kernels_bench_tools.text.names import title_from_name
from kernels_bench_tools.text.tables import grouped

_NULL, _CACHE = "null", "l2_bytes"
"""Readings of a device that are no peaks."""
NEVER_RUN = "not measured on this device"


class Source(msgspec.Struct, kw_only=True, frozen=True):
    """The records of a cell of a build, or of a committed file."""

    records: Sequence[Record]
    implementation: str = ""
    """Id of the implementation, where there may be no records."""
    front: FrontMatter | None = None
    """Front matter of the notebook; None if it is not known."""
    notebook: str = ""
    """The notebook whose cell made them; empty for a committed file."""
    cell: str = ""
    measured_now: bool = False
    """Whether this build made them: they then replace committed ones of the same device."""
    unmeasured: Device | None = None
    """The device on which the cell could run and has not."""


class Ended(NamedTuple):
    """A cell that may have written records, and how it has ended."""

    notebook: str
    cell: str
    front: FrontMatter
    status: Status
    reason: str
    files: Sequence[Path]
    """JSONL files, with records or anything else."""


class DeviceRecords(msgspec.Struct, kw_only=True, frozen=True):
    device: Device
    implementations: dict[str, list[Record]]
    """By id, sorted. One that was not measured here has a record without a workload that says so."""


@dataclass(frozen=True)
class Counted:
    """What counts of an operator, and what is wrong with its files of records."""

    sources: Sequence[Source]
    problems: Sequence[RecordError] = ()

    @cached_property
    def devices(self) -> list[DeviceRecords]:
        return counted_records(self.sources)

    def of(self, implementation: str) -> dict[str, list[Record]]:
        """Return the records of an implementation by the slug of the device."""
        return {
            it.device.slug: [record for record in it.implementations.get(implementation, ()) if record.ts]
            for it in self.devices
        }


def counted(
    root: Path,
    operator: str,
    build: BuildRun | None = None,
    fronts: Mapping[str, FrontMatter] | None = None,
) -> Counted:
    """Return what counts of an operator of a project: its committed records, and those of a build, if there is one.

    ``fronts`` is the front matter of its implementations by id, by default that of the build.
    """
    notebooks = [
        notebook
        for notebook in (build.notebooks if build else ())
        if operator_of(notebook.path) == operator and is_implementation(notebook.path)
    ]
    if fronts is None:
        fronts = {PurePosixPath(notebook.path).stem: notebook.front for notebook in notebooks}
    problems, sources = list[RecordError](), list[Source]()
    for notebook in notebooks:
        assert build
        sources += notebook_sources(root, build, notebook.path, problems.append)
    sources += committed_sources(root, record_files(root / operator), problems.append, fronts)
    return Counted(sources, problems)


def committed_sources(
    root: Path,
    files: Iterable[Path],
    on_problem: Callable[[RecordError], None],
    fronts: Mapping[str, FrontMatter] | None = None,
) -> list[Source]:
    """Return the records of files of a project, a source for each; ``on_problem`` is called for lines that are none."""
    sources = []
    for path in files:
        where = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        if owner_of(where):
            records = read_committed(root, path, on_problem)
        else:  # any other data file
            records = read_records(path, where, on_problem)
        front = (fronts or {}).get(path.stem)
        sources.append(Source(records=records, implementation=path.stem, front=front))
    return sources


def notebook_sources(
    root: Path, build: BuildRun, path: str, on_problem: Callable[[RecordError], None]
) -> list[Source]:
    """Return the records of a notebook's cells in a build, a source for each cell that measures."""
    cells = [
        Ended(
            notebook=path,
            cell=cell.id,
            front=notebook.front,
            # How its process failed is among the records.
            status=Status.OK if cell.workloads else cell.status or Status.ABSENT,
            reason="" if cell.workloads else cell.reason,
            files=[root / file for name, file in cell.artifacts.items() if name.endswith(".jsonl")],
        )
        for notebook in build.notebooks
        if notebook.path == path
        for cell in notebook.cells
        if not cell.commented
    ]
    measured = [cell for cell in cells if not all(map(is_plain, cell.files))]
    waiting = [cell for cell in cells if cell.status is Status.ABSENT]
    return cell_sources(measured or waiting[:1], build.device, on_problem)


def cell_sources(
    cells: Sequence[Ended], device: Device, on_problem: Callable[[RecordError], None]
) -> list[Source]:
    """Return the records of cells, a source for each; ``on_problem`` is called for lines that are none."""
    counts = Counter(cell.notebook for cell in cells)
    return [_cell_source(cell, device, on_problem, shared=counts[cell.notebook] > 1) for cell in cells]


def _cell_source(
    cell: Ended, device: Device, on_problem: Callable[[RecordError], None], *, shared: bool
) -> Source:
    """Return the records of a cell; without readable ones, a record of how it ended, if it has run."""
    stem = PurePosixPath(cell.notebook).stem
    # Cells of one notebook cannot all have its title and id.
    front = msgspec.structs.replace(cell.front, title="") if shared else cell.front
    own = f"{stem}_{cell.cell}" if shared else stem
    owner = cell_owner(cell.notebook, device)
    records: list[Record] = []
    unreadable = ""
    for path in (path for path in cell.files if not is_plain(path)):
        problems: list[RecordError] = []
        records += read_records(path, f"{cell.notebook} {path.name}", problems.append, owner)
        for error in problems:
            on_problem(error)
            unreadable = f"{path.name} {error.what}"
    for at, record in enumerate(records):
        impl, origin = own if record.impl == stem else record.impl, record.provenance
        if not record.schema:  # of another harness, which does not know the notebook
            origin = msgspec.structs.replace(origin, notebook=cell.notebook, cell=cell.cell)
        records[at] = msgspec.structs.replace(record, impl=impl, provenance=origin)
    status, reason = cell.status, cell.reason
    if status is Status.OK and not records:
        status, reason = Status.INVALID, unreadable or "wrote no records"
    if status not in {Status.OK, Status.ABSENT} and all(record.workload for record in records):
        records.append(whole_record(records[0].impl if records else own, status, reason, device))
    return Source(
        records=records,
        implementation=own,
        front=front,
        notebook=cell.notebook,
        cell=cell.cell,
        measured_now=True,
        unmeasured=device if status is Status.ABSENT else None,
    )


def whole_record(implementation: str, status: Status, reason: str, device: Device) -> Record:
    """Return a record without a workload and without a time, which holds for all workloads of a cell."""
    failure = Failure(type=status.value, msg=reason or f"ended with status {status.value}")
    return Record(ts="", run="", impl=implementation, status=status, err=failure, device=device)


def implementations(sources: Iterable[Source]) -> dict[str, FrontMatter]:
    """Return the front matter of each implementation's notebook by id, with a title made from the id if it has none."""
    fronts: dict[str, FrontMatter] = {}
    for source in sorted(sources, key=lambda source: source.front is None):
        front, own = source.front or FrontMatter(), {record.impl: record for record in source.records}
        for implementation in own or filter(None, [source.implementation]):
            tags = own[implementation].tags if own else {}
            title = front.title if len(own) < 2 else ""
            title = title or title_from_name(tags.get(NAME_TAG, implementation))
            family = front.family or tags.get("family", "")
            fronts.setdefault(implementation, msgspec.structs.replace(front, title=title, family=family))
    return fronts


def counted_records(sources: Sequence[Source]) -> list[DeviceRecords]:
    """Return the records that count by device: GPUs first, then those with most of them.

    Of one device and implementation, a workload's records of this build replace committed ones, as ``kbt record`` does; a
    failure without a workload replaces all. Correct records whose time is impossible get the status that says so. A device
    does not count if none of its implementations was measured although some can be.
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
    kept: dict[tuple[str, str], list[Record]] = {}
    for key in before | now:
        replaced = {record.workload for record in now[key]}
        others = [
            record
            for record in before[key]
            if not replaced or ("" not in replaced and record.workload not in {"", *replaced})
        ]
        kept[key] = _of_one_origin(others + now[key])
    fronts = implementations(sources)
    unmeasured = {source.unmeasured.slug for source in sources if source.unmeasured}
    counting = []
    for slug, device in devices.items():
        here = {name: records for (on, name), records in kept.items() if on == slug}
        if slug in unmeasured and not any(record.workload for records in here.values() for record in records):
            continue
        # The baseline counts twice, so that it is right where there is only one other.
        claims = [*here.values(), *(records for name, records in here.items() if fronts[name].baseline)]
        named = (dict.fromkeys((it.kind, it.name) for it in map(device_of, records)) for records in claims)
        (kind, name), _ = Counter(chain.from_iterable(named)).most_common(1)[0]
        device = msgspec.structs.replace(device, kind=kind, name=name)
        _reject_implausible(list(here.values()), claims, on_cpu=kind == "cpu")
        all_of = {
            name: here.get(name) or [_never_run(name, fronts[name].requires, device)]
            for name in sorted(fronts)
        }
        counting.append(DeviceRecords(device=device, implementations=all_of))
    counts = {it.device.slug: sum(map(len, it.implementations.values())) for it in counting}
    return sorted(counting, key=lambda it: (it.device.kind == "cpu", -counts[it.device.slug], it.device.slug))


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
    latest = is_source_build(max(loaded, key=lambda record: record.ts))
    return [record for record in records if not record.provenance.hub or is_source_build(record) is latest]


def _reject_implausible(
    implementations: list[list[Record]], claims: list[list[Record]], *, on_cpu: bool
) -> None:
    """Give correct records of a device whose time is impossible the status that says so.

    What a process recorded of the device and of the work counts only as far as those of the other implementations, in
    ``claims``, agree with it.
    """
    readings = grouped(reading for records in claims for reading in _readings(records).items())
    common = {name: median_low(values) for name, values in readings.items()}
    works = grouped(
        claim
        for records in claims
        for claim in {(it.workload, (it.work, str(it.wl.get("dtype", "")))) for it in records if it.work}
    )
    agreed = {
        workload: max(claimed, key=lambda it: (claimed.count(it), it[0].bytes_moved, it[0].flops))
        for workload, claimed in works.items()
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
    readings = median_peaks(records)
    if empty := [it.sentinels["null"][0] for it in records if it.sentinels.get("null")]:
        readings[_NULL] = median(empty)
    if sizes := [it.env.l2_bytes for it in records if it.env.l2_bytes]:
        readings[_CACHE] = max(sizes)
    return readings


def median_peaks(records: Iterable[Record]) -> dict[str, float]:
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for record in records:
        for name, value in record.ceilings.items():
            values[name][record.run] = value
    return {name: median(of_run.values()) for name, of_run in sorted(values.items())}
