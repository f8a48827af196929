"""What the committed records cover: which workload sets of which implementations, on which devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.table import Table

from kernels_bench_tools.cli.tables import count_processes, in_words
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.report.labels import status_label
from kernels_bench_tools.schema.build import FORWARD, has_other_code
from kernels_bench_tools.schema.record import Record, Status
from kernels_bench_tools.schema.record_io import read_records
from kernels_bench_tools.summarize.merge import by_workload, merge
from kernels_bench_tools.summarize.views import view_of

NOT_TRIED = status_label(Status.ABSENT).word
EARLIER_CODE = "of earlier code"


class Extent(NamedTuple):
    """What can be measured at once: a device's slug, a mode and a workload set."""

    device: str
    mode: str
    set: str


Recorded = dict[str, dict[Extent, list[Record]]]
"""The records of an operator, by implementation."""


class Coverage(msgspec.Struct, kw_only=True):
    """What is recorded of one implementation's workload set, on one device and in one mode."""

    operator: str
    implementation: str
    device: str
    mode: str
    set: str
    """Empty for what speaks for all workloads."""
    rows: int = 0
    """How many records there are, of all processes; with none, it has not been tried."""
    workloads: int = 0
    """How many have a record."""
    measured: int = 0
    """How many of them have a latency that is worth ranking."""
    processes: int = 0
    date: str = ""
    """The day of the oldest record."""
    earlier_code: bool = False
    """Whether something of it was measured with other code than the cell has now."""
    others: dict[str, int] = msgspec.field(default_factory=dict)
    """How many have no such latency, by how they ended."""

    @property
    def remark(self) -> str:
        """What keeps this from being complete; empty if nothing does."""
        if not self.rows:
            return NOT_TRIED
        counted = self.workloads > 0
        told = [f"{count} " * counted + in_words(status) for status, count in self.others.items()]
        return ", ".join([EARLIER_CODE] * self.earlier_code + told)


def find_coverage(notebooks: Iterable[Notebook]) -> list[Coverage]:
    """Return what is recorded of these implementations, in their order.

    What is recorded of other implementations of the operator, asked about or not, and not of one, is there with no
    workload: it has not been tried.

    Raises:
        RecordError: A file of records cannot be read.
    """
    found: list[Coverage] = []
    recorded: dict[Path, Recorded] = {}
    for notebook in notebooks:
        folder = notebook.path.parents[1]
        if folder not in recorded:
            recorded[folder] = _read(folder)
        found += _cover(notebook, recorded[folder])
    return found


def coverage_tables(rows: Sequence[Coverage]) -> Iterator[Table]:
    """Yield a table for each device."""
    for device in sorted({row.device for row in rows}):
        table = Table(box=None, pad_edge=False, header_style="bold", title=device, title_justify="left")
        table.add_column("implementation", overflow="fold", min_width=16)
        for column in ("set", "measured", "processes", "since"):
            table.add_column(column, no_wrap=True)
        table.add_column("remark", overflow="fold", min_width=14)
        for row in rows:
            if row.device == device:
                table.add_row(*_cells(row))
        yield table


def _cells(row: Coverage) -> tuple[str, ...]:
    return (
        f"{row.operator}/{row.implementation}",
        (row.set or "all") + ("" if row.mode == FORWARD else f" {row.mode}"),
        f"{row.measured} of {row.workloads}" if row.workloads else "-",
        str(row.processes or "-"),
        row.date or "-",
        row.remark,
    )


def _read(folder: Path) -> Recorded:
    """Return the committed records of an operator."""
    recorded: Recorded = defaultdict(lambda: defaultdict(list))
    for path in sorted((folder / "results" / "records").glob("*/*.jsonl")):
        for entry in read_records(path):
            recorded[path.stem][_extent(entry)].append(entry)
    return recorded


def _cover(notebook: Notebook, recorded: Recorded) -> Iterator[Coverage]:
    own = recorded[notebook.implementation]
    code = {cell.id: cell.code for cell in notebook.cells}
    settled = {extent.device for extent in own if not extent.set}
    for extent in sorted({extent for extents in recorded.values() for extent in extents}):
        row = Coverage(operator=notebook.operator, implementation=notebook.implementation, **extent._asdict())
        if extent in own:
            yield _fill(row, own[extent], code)
        elif extent.set and extent.device not in settled:
            yield row


def _fill(row: Coverage, entries: Sequence[Record], code: Mapping[str, str]) -> Coverage:
    processes, whole = by_workload(entries)
    joined = [merge(each) for each in processes.values()] or ([whole] if whole else [])
    row.rows = len(entries)
    row.workloads = len(processes)
    row.measured = sum(entry.ok for entry in joined)
    row.processes = count_processes(entries)
    row.date = min(entry.ts for entry in entries)[:10]
    origins = {entry.provenance.code_digest: entry.provenance for entry in entries if entry.outcome.ran}
    row.earlier_code = any(has_other_code(origin, code) for origin in origins.values())
    row.others = Counter(entry.outcome.value for entry in joined if not entry.ok)
    return row


def _extent(entry: Record) -> Extent:
    view = view_of(entry.wl)
    return Extent(entry.device.slug if entry.device else "", view.mode or FORWARD, view.set)
