"""``kbt run``: one notebook, its results beside the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.build import FAILURES, checked_limits, finished_cells, run_cells
from kernels_bench_tools.cli.options import (
    Cluster,
    Env,
    EnvironmentChoice,
    Jobs,
    Json,
    MemoryLimit,
    Mode,
    ModeChoice,
    PassEnv,
    Processes,
    Rerun,
    Strict,
    Workloads,
)
from kernels_bench_tools.cli.physics import cell_records, complain_of_impossible
from kernels_bench_tools.cli.ranking import by_operator, operator_table
from kernels_bench_tools.cli.tables import comparison_table, count_processes, tell_processes
from kernels_bench_tools.cluster import cluster_executor
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.schema.build import BuildRun, CellRun, NotebookRun
from kernels_bench_tools.schema.record import Record
from kernels_bench_tools.summarize.rows import Comparison, compare_records
from kernels_bench_tools.text import title_from_name


def run_notebook(
    notebook: Annotated[
        str,
        typer.Argument(
            metavar="NOTEBOOK[:CELL]", help="A path, OPERATOR/IMPLEMENTATION, or OPERATOR for all of its own."
        ),
    ],
    env: Env = EnvironmentChoice.UV,
    rerun: Rerun = False,
    workloads: Workloads = "",
    mode: Mode = ModeChoice.FWD,
    jobs: Jobs = 0,
    processes: Processes = 0,
    cluster: Cluster = "",
    memory_limit: MemoryLimit = "",
    pass_env: PassEnv = None,
    strict: Strict = False,
    json: Json = False,
) -> int:
    """Run one notebook, or one of its cells, and print its results beside the operator's baseline.

    Of a whole operator, the ranking of its implementations is printed, and every workload.

    Nothing is published; `kbt build` does that, after measuring in more processes. What a build has measured
    is not measured again. The exit code is 2 if a row is faster than physics allows.
    """
    project = find_project(Path.cwd())
    # A cell may be named behind the path; `rpartition` would cut a path that holds a colon itself.
    target, _, cell_id = notebook.partition(":")
    names = [project.relative(path) for path in project.find_notebooks([target])]
    asked = [f"{name}:{cell_id}" if cell_id else name for name in names]
    baselines_of = {name: _baselines_of(project, name) for name in names}
    baselines = {path for paths in baselines_of.values() for path in paths} - set(names)
    options = BuildOptions(
        environment=env.value,
        rerun=tuple(asked) if rerun else False,
        workloads=workloads,
        mode=mode.value,
        processes=processes,
        executor=cluster_executor(cluster),
        **checked_limits(jobs, memory_limit, pass_env),
        quick=True,
    )
    result = run_cells(project, [*asked, *sorted(baselines)], options)
    shown = [
        (entry, cell)
        for entry in result.notebooks
        if entry.path in names
        for cell in entry.cells
        if cell.status is not None and cell_id in {"", cell.id}
    ]
    if json:
        data = [_as_data(project, result, baselines_of[entry.path], entry, cell) for entry, cell in shown]
        print(msgspec.json.encode(data).decode())
    else:
        together = by_operator(shown)
        for operator, theirs in together.items():
            print(operator_table(project, result, operator, theirs))
        for entry, cell in shown:
            if not any((entry, cell) in theirs for theirs in together.values()):
                _show(project, result, baselines_of[entry.path], entry, cell)
    concerned = {*names, *baselines}
    cells = [cell for cell in finished_cells(result) if cell[0].rpartition(":")[0] in concerned]
    failed = strict and any(cell.status in FAILURES for _, cell in shown)
    return FAILURE if complain_of_impossible(project, cells) or failed else 0


def _baselines_of(project: Project, name: str) -> list[str]:
    """Return the notebooks that an implementation may be compared with; only itself if it is one.

    An operator of several functions has a baseline for each; which of them an implementation computes, only its
    records tell.
    """
    path = project.root / name
    paths = next((paths for paths in operators(project).values() if path in paths), [])
    found = [project.relative(other) for other in paths if read_notebook(project, other).front.baseline]
    return [name] if name in found else found


def _comparisons(
    project: Project, result: BuildRun, baselines: Sequence[str], records: Sequence[Record]
) -> tuple[str, list[Comparison]]:
    """Return the baselines' titles and a row per workload of a measuring cell's records."""
    workloads = {record.workload for record in records}
    titles, theirs = [], []
    for other in result.notebooks:
        if other.path in baselines:
            found = [record for run in other.cells for record in cell_records(project, run)]
            # A record without a workload, of a cell that died, may stand for any of them.
            if len(baselines) == 1 or "" in workloads or any(one.workload in workloads for one in found):
                titles.append(title_of(other))
                theirs += found
    return " or ".join(titles), compare_records(records, theirs)


def title_of(notebook: NotebookRun) -> str:
    """Return what pages and tables call a notebook."""
    return notebook.front.title or title_from_name(PurePosixPath(notebook.path).stem)


def _as_data(
    project: Project, result: BuildRun, baselines: Sequence[str], entry: NotebookRun, cell: CellRun
) -> dict[str, Any]:
    records = list(cell_records(project, cell))
    title, rows = _comparisons(project, result, baselines, records)
    return {
        "cell": f"{entry.path}:{cell.id}",
        "status": cell.status,
        "reason": cell.reason,
        "cached": cell.cached,
        "baseline": title,
        "processes": count_processes(records),
        "rows": rows,
    }


def _show(
    project: Project, result: BuildRun, baselines: Sequence[str], entry: NotebookRun, cell: CellRun
) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    records = list(cell_records(project, cell))
    title, rows = _comparisons(project, result, baselines, records)
    heading = f"{title_of(entry)} on {result.device.name}{tell_processes(records)}"
    console.print(heading, style="bold", markup=False)
    if rows:
        console.print(comparison_table(rows, title))
    elif cell.stdout:
        print((project.root / cell.stdout).read_text(encoding="utf-8", errors="replace"), end="")
    if cell.status in FAILURES:
        console.print(f"{cell.status}: {cell.reason}", style="red", markup=False)
        console.print(f"log: {cell.stderr}", markup=False)
