"""Where records are committed, and whose they have to be there, and in the files of a cell."""

from __future__ import annotations

import errno
import glob
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from msgspec.structs import replace

from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.records.device import Device, cpu_device
from kernels_bench_tools.records.notebook import RESULTS, operator_of
from kernels_bench_tools.records.record import Record, device_of
from kernels_bench_tools.text.names import is_unicode

_RECORDS = "records"
NAME_TAG = "impl"
"""Tag of a record of another harness with its own name of the implementation."""
EFFECTS = "effects"
"""Folder of a project with the records of ``kbt effect``."""


class Owner(NamedTuple):
    """What the records of a cell or of a committed file have to be of."""

    operator: str
    """Its id; empty for any."""
    implementation: str
    devices: Collection[str]
    """Slugs of one or several."""
    device: Device | None = None
    """The device of the build whose cell wrote the records; None for committed ones."""
    model: str = ""
    """Of a file of :data:`EFFECTS`, whose implementation is then an :func:`effect_name`; empty for other files."""

    def claim(self, records: dict[int, Record]) -> dict[int, str]:
        """Remove the records, by line, that are of something else; return how they differ by line.

        Records of another harness get their cell's implementation and CPU; the name that they have becomes a tag. Several
        implementations of one cell are told apart by what follows a colon.
        """
        foreign = {number: record for number, record in records.items() if self.device and not record.schema}
        several = len({record.impl for record in foreign.values()}) > 1
        for number, record in foreign.items():
            name = f"{self.implementation}:{record.impl}" if several else self.implementation
            if record.impl != name:
                record = replace(record, impl=name, tags={**record.tags, NAME_TAG: record.impl})
            if record.device is None and device_of(record).name == "CPU":
                record = replace(
                    record, device=self.device if self.device and self.device.kind == "cpu" else cpu_device()
                )
            records[number] = record
        devices = (record.device for record in records.values() if record.device)
        known = next((device for device in devices if device.slug in self.devices), None)
        problems = {}
        for number, record in list(records.items()):
            if record.device is None and record.schema and known is not None:
                # The line of its process that names the device is not a record.
                record = records[number] = replace(record, device=known)
            if difference := self._difference(record):
                problems[number] = difference
                del records[number]
        return problems

    def _difference(self, record: Record) -> str:
        effect, device = record.effect, device_of(record)
        if self.model and effect is None and record.outcome.ran:
            return "is not a record of `kbt effect`"
        if effect is not None and not self.model and self.device is None:
            return f"is a record of `kbt effect`, which belongs in {EFFECTS}/"
        # Records have the last part of the operator's id, or all of it.
        names = {"operator": (record.op.rpartition("/")[2], self.operator.rpartition("/")[2])}
        if self.model:
            name = effect_name(record, effect.others if effect else ())
            # A failure does not name those that were replaced together with it.
            alone = effect is None and self.implementation.startswith(f"{name}+")
            names = {"implementation": (self.implementation if alone else name, self.implementation)}
            names["model"] = (effect.model if effect else "", self.model)
        elif not self.device or record.schema:  # other harnesses name implementations as they like
            names["implementation"] = (record.impl, self.implementation)
        for what, (own, expected) in names.items():
            if own and expected and own != expected:
                return f"is a record of {what} {own!r}, expected {expected!r}"
        # Files of kernels-benchmarks do not name a CPU.
        slug = device.slug if record.device or device.name != "CPU" else ""
        # torch adds the part of a GPU that it uses to the GPU's name: "NVIDIA H200 MIG 1g.18gb".
        if slug and not {slug, slug.partition("-mig-")[0]} & {*self.devices}:
            return f"is a record of device {slug!r}, expected {' or '.join(map(repr, self.devices))}"
        return ""


def cell_owner(notebook: str, device: Device) -> Owner:
    """Return what the records of a notebook's cells have to be of; they may measure the CPU beside the device."""
    devices = [*dict.fromkeys((device.slug, cpu_device().slug))]
    return Owner(operator_of(notebook), PurePosixPath(notebook).stem, devices, device)


def owner_of(path: str) -> Owner | None:
    """Return whose records a committed file has, given its path in a project; None for any other file.

    >>> owner_of("rotary/results/records/nvidia-h200/torch_rotary.jsonl")[:3]
    ('rotary', 'torch_rotary', ['nvidia-h200'])
    """
    parts = PurePosixPath(path).parts
    if not path.endswith(".jsonl"):
        return None
    if len(parts) > 4 and parts[-4:-2] == (RESULTS, _RECORDS):
        return Owner("/".join(parts[:-4]), PurePosixPath(path).stem, [parts[-2]])
    if len(parts) == 4 and parts[0] == EFFECTS:
        return Owner("", PurePosixPath(path).stem, [parts[1]], model=parts[2])
    return None


def record_file(operator: Path, device: str, implementation: str) -> Path:
    """Return the committed file of an implementation, in the operator's folder."""
    return path_below(operator / RESULTS / _RECORDS, f"{device}/{implementation}", ".jsonl", linked=True)


def record_files(operator: Path, implementation: str = "") -> list[Path]:
    files = (operator / RESULTS / _RECORDS).glob(f"*/{glob.escape(implementation) or '*'}.jsonl")
    return sorted(path for path in files if is_unicode(str(path)))


def effect_file(root: Path, model: str, record: Record, others: Iterable[str]) -> Path:
    """Return the file of a project for a record of ``kbt effect``, whose device is known."""
    name = f"{device_of(record).slug}/{model}/{effect_name(record, others)}"
    return path_below(root / EFFECTS, name, ".jsonl", linked=True)  # of which :func:`is_linked` tells


def effect_files(root: Path) -> list[Path]:
    return sorted((root / EFFECTS).glob("*/*/*.jsonl"), key=lambda path: (path.parent, path.stem))


def effect_name(record: Record, others: Iterable[str]) -> str:
    """Return the name of a file of :data:`EFFECTS`: ``OPERATOR--IMPLEMENTATION``, and those of ``others`` after ``+``."""
    return "+".join(map(effect_part, [f"{record.op}/{record.impl}", *others]))


def effect_part(implementation: str) -> str:
    """Return the part of an :func:`effect_name` that stands for ``operator/implementation``."""
    return "--".join(implementation.split("/")[-2:])


def is_committed(path: Path) -> bool:
    """Return whether a file of records is one of ``records/DEVICE/IMPLEMENTATION.jsonl``."""
    return path.parent.parent.name == _RECORDS


def is_linked(path: Path) -> bool:
    is_effect = [folder.name for folder in path.parents[2:3]] == [EFFECTS]
    folders = path.parents[:3] if is_committed(path) or is_effect else ()
    return any(part.is_symlink() for part in (path, *folders))


def read_unlinked(path: Path) -> bytes:
    """Return the bytes of a file of records; raise an ``OSError`` if :func:`is_linked`."""
    if is_linked(path):
        raise OSError(errno.ELOOP, "it is a symbolic link or inside one")
    return read_file(path)
