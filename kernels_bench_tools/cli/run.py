"""``kbt run``: one notebook, its results beside the baseline's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernels_bench_tools.cli import STRICT_FAILURE
from kernels_bench_tools.cli.build import FAILURES, run_cells
from kernels_bench_tools.cli.options import Env, EnvironmentChoice, Jobs, Json, Rerun, Strict, Workloads
from kernels_bench_tools.naming import title_from_name
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.records import Record, Status, read_records
from kernels_bench_tools.runs import BuildRun, CellRun, NotebookRun
from kernels_bench_tools.summarize.compare import Comparison, compare_records


def run_notebook(
    notebook: Annotated[
        str, typer.Argument(metavar="NOTEBOOK[:CELL]", help="A path, or OPERATOR/IMPLEMENTATION.")
    ],
    env: Env = EnvironmentChoice.UV,
    rerun: Rerun = False,
    workloads: Workloads = "",
    jobs: Jobs = 0,
    strict: Strict = False,
    json: Json = False,
) -> int:
    """Run one notebook, or one of its cells, and print its results beside the operator's baseline.

    Nothing is published; `kbt build` does that, without measuring again.
    """
    project = find_project(Path.cwd())
    # A cell may be named behind the path; `rpartition` would cut a path that holds a colon itself.
    target, _, cell_id = notebook.partition(":")
    names = [project.relative(path) for path in project.find_notebooks([target])]
    asked = [f"{name}:{cell_id}" if cell_id else name for name in names]
    baselines = {baseline for name in names if (baseline := _baseline_of(project, name)) not in {"", *names}}
    result = run_cells(
        project, [*asked, *sorted(baselines)], env, tuple(asked) if rerun else False, workloads, jobs
    )
    shown = [
        (entry, cell)
        for entry in result.notebooks
        if entry.path in names
        for cell in entry.cells
        if cell.status is not None and cell_id in {"", cell.id}
    ]
    if json:
        print(msgspec.json.encode([_as_data(project, result, entry, cell) for entry, cell in shown]).decode())
    else:
        for entry, cell in shown:
            _show(project, result, entry, cell)
    return STRICT_FAILURE if strict and any(cell.status in FAILURES for _, cell in shown) else 0


def _baseline_of(project: Project, name: str) -> str:
    """Return the baseline's notebook for an implementation's; empty if there is none."""
    path = project.root / name
    for paths in operators(project).values():
        if path in paths:
            found = (other for other in paths if read_notebook(project, other).front.baseline)
            return next((project.relative(other) for other in found), "")
    return ""


def _records(project: Project, cell: CellRun) -> list[Record]:
    return [
        record
        for name, path in cell.artifacts.items()
        if name.endswith(".jsonl")
        for record in read_records(project.root / path, path)
    ]


def _comparisons(
    project: Project, result: BuildRun, entry: NotebookRun, cell: CellRun
) -> tuple[str, list[Comparison]]:
    """Return the baseline's title and a row per workload of a measuring cell."""
    records = _records(project, cell)
    baseline = _baseline_of(project, entry.path)
    for other in result.notebooks:
        if other.path == baseline:
            theirs = [record for run in other.cells for record in _records(project, run)]
            return title_of(other), compare_records(records, theirs)
    return "", compare_records(records, [])


def title_of(notebook: NotebookRun) -> str:
    """Return what pages and tables call a notebook."""
    return notebook.front.title or title_from_name(PurePosixPath(notebook.path).stem)


def _as_data(project: Project, result: BuildRun, entry: NotebookRun, cell: CellRun) -> dict[str, Any]:
    baseline, rows = _comparisons(project, result, entry, cell)
    return {
        "cell": f"{entry.path}:{cell.id}",
        "status": cell.status,
        "reason": cell.reason,
        "cached": cell.cached,
        "baseline": baseline,
        "rows": rows,
    }


def _show(project: Project, result: BuildRun, entry: NotebookRun, cell: CellRun) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    baseline, rows = _comparisons(project, result, entry, cell)
    console.print(f"{title_of(entry)} on {result.device.name}", style="bold", markup=False)
    if rows:
        console.print(_table(rows, baseline))
    elif cell.stdout:
        print((project.root / cell.stdout).read_text(encoding="utf-8", errors="replace"), end="")
    if cell.status in FAILURES:
        console.print(f"{cell.status}: {cell.reason}", style="red", markup=False)
        console.print(f"log: {cell.stderr}", markup=False)


def _table(rows: Iterable[Comparison], baseline: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload")
    table.add_column("median ms [95 % interval]", justify="right")
    table.add_column(f"{baseline or 'baseline'} ms", justify="right")
    table.add_column("speed-up", justify="right")
    table.add_column("verdict")
    for row in rows:
        told = row.verdict.value if row.status is Status.OK else f"{row.status.value}: {row.reason}"
        table.add_row(
            row.workload or "every workload",
            _measured(row),
            "-" if row.baseline_ms is None else f"{row.baseline_ms:.5g}",
            "-" if row.speedup is None else f"{row.speedup:.2f}x",
            Text(told),
        )
    return table


def _measured(row: Comparison) -> Text:
    # Text, because rich would read the interval's brackets as markup.
    if row.median_ms is None:
        return Text("-")
    if row.ci_low_ms is None or row.ci_high_ms is None:
        return Text(f"{row.median_ms:.5g}")
    return Text(f"{row.median_ms:.5g} [{row.ci_low_ms:.5g}, {row.ci_high_ms:.5g}]")
