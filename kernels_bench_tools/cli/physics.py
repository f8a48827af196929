"""Rows that are faster than the device can be: no build that has one is good."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.schema.build import CellRun
from kernels_bench_tools.schema.record import Record, Status
from kernels_bench_tools.schema.record_io import read_records


def cell_records(project: Project, cell: CellRun) -> Iterator[Record]:
    """Yield the records that a cell left, of all its processes."""
    for name, path in cell.artifacts.items():
        if name.endswith(".jsonl"):
            try:
                yield from read_records(project.root / path, path)
            except RecordError:  # the cell has failed for it already
                continue


def complain_of_impossible(project: Project, cells: Iterable[tuple[str, CellRun]]) -> int:
    """Name each row that exceeds physics on stderr; return how many there are.

    Args:
        project: The project, from whose root paths count.
        cells: ``notebook:cell`` and run of each cell.
    """
    found = {
        (name, record.workload): record.err.msg if record.err else "no reason recorded"
        for name, cell in cells
        for record in cell_records(project, cell)
        if record.outcome is Status.EXCEEDS_PHYSICS
    }
    for (name, workload), reason in found.items():
        print(f"kbt: {name}: {workload} is faster than physics allows: {reason}", file=sys.stderr)
    return len(found)
