"""``kbt run``: run notebooks and compare their results with the baseline."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
import typer

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.gate import measure_versions
from kernels_bench_tools.cli.importing import import_hf
from kernels_bench_tools.cli.output import (
    cell_data,
    count_processes,
    note,
    note_problem,
    notebook_records,
    print_failures,
    print_heading,
    print_json,
    print_table,
    processes_suffix,
    short_path,
    terminal_width,
)
from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import file_text
from kernels_bench_tools.notebooks.benchmark_calls import find_benchmark_calls
from kernels_bench_tools.notebooks.document import Notebook, read_notebook, survey_notebook
from kernels_bench_tools.notebooks.project import Project, find_project_of, operators
from kernels_bench_tools.notebooks.survey import cell_problems
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun
from kernels_bench_tools.records.notebook import is_implementation, operator_of
from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Verdict
from kernels_bench_tools.results.counted import Source, notebook_sources
from kernels_bench_tools.results.export import text_table
from kernels_bench_tools.results.summary import ComparedPoint, compare_records, summarize
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.names import title_from_name
from kernels_bench_tools.text.numbers import interval, milliseconds, quantity, times, times_interval
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import plural

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_ADD_PACKAGE = "to import {} in a cell, add its package to `dependencies` of the header; files beside the notebook cannot be imported"


@takes_build_options(
    "env rerun retry_failed workloads mode sustained jobs processes cluster memory_limit pass_env"
)
def run_notebook(
    notebook: Annotated[str, typer.Argument()],
    *,
    against: str = "",
    heads: Annotated[list[str] | None, typer.Option("--with")] = None,
    options: BuildOptions,
    strict: opt.Strict = False,
    json: opt.Json = False,
) -> int:
    """Run a notebook and compare it with the baseline.

    For an operator, print the ranking of its implementations and the results of each workload. A file of
    `kernels benchmark`, such as benchmarks/benchmark.py, is measured as by `kbt import hf`.

    Publishes nothing, and reuses results of earlier builds. Measures in one process unless --processes is given;
    `kbt build` uses several.

    Args:
        notebook (NOTEBOOK[:CELL]): Path, OPERATOR/IMPLEMENTATION, or OPERATOR for all its implementations.
        against (REV): Compare instead with this Git revision, or with a version of a package such as `triton==3.5.0`, in
            one session (see `kbt gate`, which also fails if it is slower).
        heads (VERSION): With --against: measure this version of a package or Hub kernel. Repeatable.
    """
    if notebook.endswith(".py"):
        return import_hf(Path(notebook), processes=options.processes or 1, json=json)
    if against:
        return measure_versions([notebook], against, heads or [], options, json=json)[1]
    if heads:
        raise ProjectError("--with", "has nothing to compare with", "", "Add --against")
    project = find_project_of([notebook])
    # A cell may be named after the path; `rpartition` would cut a path that contains a colon.
    target, _, cell_id = notebook.partition(":")
    names = [project.relative(path) for path in project.find_notebooks([target])]
    # A notebook that combines the records of these publishes them, and has no results of its own.
    measured = {operator_of(name) for name in names if is_implementation(name)} - {""}
    names = [name for name in names if is_implementation(name) or operator_of(name) not in measured]
    targets = [f"{name}:{cell_id}" if cell_id else name for name in names]
    baselines_of = {name: _baselines_of(project, name) for name in names}
    baselines = {path for paths in baselines_of.values() for path in paths} - set(names)
    options = replace(options, rerun=tuple(targets) if options.rerun else False, quick=True)
    shown = names if len(names) == 1 else ()
    result = build(project, [*targets, *sorted(baselines)], options, PlainProgress(shown))
    cells = [
        CellResult(project, result, baselines_of[entry.path], entry, cell)
        for entry in result.notebooks
        if entry.path in names
        for cell in entry.cells
        if cell.status is not None and cell_id in {"", cell.id}
    ]
    if not cells:
        note(f"{notebook} has no cell to run")
    if json:
        print_json([cell.as_data() for cell in cells])
    else:
        _print_results(cells)
        _note_what_next(cells)
    return print_failures(result, strict=strict)


def _baselines_of(project: Project, name: str) -> list[str]:
    """Return the notebooks that an implementation may be compared with; only itself if it is a baseline.

    An operator of several functions has a baseline for each. One that selects workloads with the same literals as the
    implementation computes the same; if there is none, the records state which one does.
    """

    def selected(notebook: Notebook) -> list[tuple[Any, Any]]:
        """Return what the calls select of an operator: ``only=`` and ``layout=``; empty if one is no literal."""
        runs = [call.settings for cell in notebook.active_cells for call in find_benchmark_calls(cell.code)]
        pairs = [(settings.get("only", ""), settings.get("layout", "")) for settings in runs]
        return [] if any(None in pair for pair in pairs) else pairs

    path = project.root / name
    paths = next((paths for paths in operators(project).values() if path in paths), [])
    notebooks = {project.relative(other): survey_notebook(project, other) for other in paths}
    baselines = [other for other, notebook in notebooks.items() if notebook.front.baseline]
    own = selected(notebooks[name]) if name in notebooks else []
    same = [other for other in baselines if own and selected(notebooks[other]) == own]
    return [name] if name in baselines else same or baselines


@dataclass
class CellResult:
    project: Project
    result: BuildRun
    baselines: Sequence[str]
    entry: NotebookRun
    cell: CellRun

    @property
    def operator(self) -> str:
        """The operator that the notebook implements, or empty."""
        return operator_of(self.entry.path) if is_implementation(self.entry.path) else ""

    @cached_property
    def source(self) -> Source:
        """The records of the cell, in all its processes."""
        sources = notebook_sources(self.project.root, self.result, self.entry.path, note_problem)
        return next((source for source in sources if source.cell == self.cell.id), Source(records=[]))

    @property
    def records(self) -> Sequence[Record]:
        return self.source.records

    @cached_property
    def comparisons(self) -> tuple[str, list[ComparedPoint]]:
        """The baselines' titles and a row for each workload."""
        workloads = {"", *(record.workload for record in self.records)}
        compared = []
        for other in self.result.notebooks:
            if other.path in self.baselines:
                records = notebook_records(self.project, self.result, other.path)
                # A failed cell's record without a workload applies to all of them.
                if len(self.baselines) == 1 or any(record.workload in workloads for record in records):
                    compared.append((other, records))
        theirs = [record for _, records in compared for record in records]
        return " or ".join(_title_of(other) for other, _ in compared), compare_records(self.records, theirs)

    def as_data(self) -> dict[str, Any]:
        title, rows = self.comparisons
        data = cell_data(self.entry, self.cell)
        return {**data, "baseline": title, "processes": count_processes(self.records), "rows": rows}


def _print_results(cells: Sequence[CellResult]) -> None:
    """Print a ranking for each operator of which several implementations ran, and a table for each other cell."""
    single: list[CellResult] = []
    for operator, group in grouped((cell.operator, cell) for cell in cells).items():
        if not operator or len({result.entry.path for result in group}) == 1:
            single += group
            continue
        sources = [result.source for result in group if result.records]  # the others print something else
        summary = summarize(operator, title_from_name(operator.rpartition("/")[2]), sources)
        print(visible(text_table(summary, terminal_width())))
    for result in single:
        _print_comparison(result)


def _print_comparison(result: CellResult) -> None:
    cell, folder = result.cell, result.project.root
    title, rows = result.comparisons
    device = result.result.device.name
    print_heading(f"{_title_of(result.entry)} on {device}{processes_suffix(result.records)}")
    if rows and rows[0].status.failed and len({(row.status, row.reason, row.p50_ms) for row in rows}) == 1:
        rows = [msgspec.structs.replace(rows[0], workload="", baseline_ms=None)]  # the same failure of all
    if rows:
        _print_rows(rows, title)
    elif cell.stdout:
        print(visible(file_text(folder / cell.stdout)), end="")
    if cell.status and cell.status.failed and not rows:
        print(visible(f"{cell.status.label}: {cell.reason}"))
    raised = any(record.outcome.failed and not record.outcome.ran for record in result.records)
    if cell.stderr and (cell.exit_code or raised):  # the log has the traceback
        if place := _place_of_error(result):
            print(visible(place))
        print(visible(f"log: {short_path(folder / cell.stderr)}"))


def _print_rows(rows: Sequence[ComparedPoint], baseline: str) -> None:
    """Print a line for each workload, with as many columns as the terminal has room for."""
    most = max((row.processes for row in rows if row.p50_ms is not None), default=1)
    title = textwrap.fill(f"{baseline or 'baseline'} ms", 12)
    titles = ["workload", "median\nms", "[95 %]", title, "speed-up", "[95 %]", "submit\nms", "e2e\nms"]
    lines = [[*titles, "sustained\nms", "J", "verdict"]]
    lines += [
        [
            *(row.workload or "every workload", milliseconds(row.p50_ms)),
            *(interval(row.latency), milliseconds(row.baseline_ms)),
            *(times(row.speedup), times_interval(row.gain)),
            *(milliseconds(row.host_submit_ms), milliseconds(row.e2e_ms)),
            *(milliseconds(row.value("sustained_ms")), quantity(row.value("joules")), _verdict(row, most)),
        ]
        for row in rows
    ]
    # The host's times are not measured on a CPU, sustained ones only if asked for.
    print_table(lines, right=range(1, 10), optional=(3, 2, 5, 6, 7, 4, 1, 9, 8))


def _verdict(row: ComparedPoint, most: int) -> str:
    text = row.verdict.label if row.status is Status.OK else f"{row.status.label}: {row.reason}"
    if row.status is Status.OK and row.verdict is Verdict.FEW_PROCESSES:
        few = row.processes < FEWEST_PROCESSES
        text = f"{plural(row.processes, 'process', 'es') if few else 'baseline in too few processes'}: {text}"
    elif row.status is Status.OK and row.baseline_status not in {Status.OK, Status.ABSENT}:
        text = f"{text}; baseline: {row.baseline_status.label}"
    notes = [flag.label for flag in row.flags if flag.label not in text]
    if row.limitation:
        notes.append(row.limitation)
    if row.p50_ms is not None and row.processes < most:
        notes.append(f"{row.processes} of {most} processes")
    return f"{text} ({', '.join(notes)})" if notes else text


def _place_of_error(result: CellResult) -> str:
    """Return the notebook's line in the last traceback of a cell's log, ``NOTEBOOK:LINE: CODE``; empty if there is none."""
    folder, cell, path = result.project.root, result.cell, result.entry.path
    log = file_text(folder / cell.stderr)
    script = re.escape(f"{PurePosixPath(path).stem}__{cell.id}.py")
    places = re.findall(rf'/{script}", line (\d+).*\n +(.+)', log)
    if not places:
        return ""
    number, code = cell.line + int(places[-1][0]), places[-1][1]
    lines = ["", *file_text(folder / path).splitlines()]
    # Not if the code is in another file, or a header was added to it.
    is_there = number < len(lines) and lines[number].strip() == code.strip()
    return f"{path}:{number}: {code}" if is_there else ""


def _note_what_next(cells: Sequence[CellResult]) -> None:
    """Say what to do about mistakes in cells that failed, results that are stored ones, and rows without a verdict."""
    failed = {
        result.entry.path: result for result in cells if result.cell.status and result.cell.status.failed
    }
    for path, result in failed.items():
        mistakes = cell_problems([read_notebook(result.project, result.project.root / path)])
        for text in mistakes or map(_ADD_PACKAGE.format, _MISSING_MODULE.findall(result.cell.reason)):
            note(str(text))
    if any(result.cell.cached and result.records for result in cells):
        note("stored results are shown, since nothing changed; --rerun measures again")
    rows = [row for result in cells if result.records for row in result.comparisons[1]]
    if any(row.verdict is Verdict.FEW_PROCESSES and row.processes < FEWEST_PROCESSES for row in rows):
        note(f"a verdict needs {FEWEST_PROCESSES} processes: --processes {FEWEST_PROCESSES}")


def _title_of(notebook: NotebookRun | Notebook) -> str:
    return notebook.front.title or title_from_name(PurePosixPath(notebook.path).stem)
