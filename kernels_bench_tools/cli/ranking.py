"""Several implementations of an operator, run together: one summary instead of a table for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from kernels_bench_tools.cli.physics import cell_records
from kernels_bench_tools.notebooks.project import IMPLEMENTATIONS, Project, operator_of
from kernels_bench_tools.schema.build import BuildRun, CellRun, NotebookRun
from kernels_bench_tools.schema.record import Record
from kernels_bench_tools.summarize.export import text_table
from kernels_bench_tools.summarize.rows import Source, whole_record
from kernels_bench_tools.summarize.summary import summarize
from kernels_bench_tools.text import title_from_name

Shown = Sequence[tuple[NotebookRun, CellRun]]


def by_operator(shown: Shown) -> dict[str, Shown]:
    """Return the cells of each operator that several implementations were run of."""
    found: dict[str, list[tuple[NotebookRun, CellRun]]] = {}
    for entry, cell in shown:
        operator = operator_of(entry.path)
        if operator and PurePosixPath(entry.path).parent.name == IMPLEMENTATIONS:
            found.setdefault(operator, []).append((entry, cell))
    return {
        operator: cells for operator, cells in found.items() if len({entry.path for entry, _ in cells}) > 1
    }


def operator_table(project: Project, result: BuildRun, operator: str, cells: Shown) -> str:
    """Return the rankings and workloads of an operator on this build's device, as text."""
    sources = [Source(records=_records(project, result, *shown), front=shown[0].front) for shown in cells]
    return text_table(summarize(operator, title_from_name(operator.rpartition("/")[2]), sources))


def _records(project: Project, result: BuildRun, entry: NotebookRun, cell: CellRun) -> list[Record]:
    records = list(cell_records(project, cell))
    if records or cell.status is None:
        return records
    return [whole_record(PurePosixPath(entry.path).stem, cell.status, cell.reason, result.device)]
