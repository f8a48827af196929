"""``kbt run``: run notebooks and compare their results with the baseline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build import run_cells
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.output import (
    cell_data,
    cell_records,
    count_processes,
    finish,
    note,
    notebook_records,
    print_heading,
    print_json,
    processes_suffix,
    short_path,
    terminal_width,
)
from kernels_bench_tools.cli.tables import comparison_table
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.notebooks.calls import find_runs
from kernels_bench_tools.notebooks.document import Notebook, read_notebook, survey_notebook
from kernels_bench_tools.notebooks.project import Project, find_project_of, operators
from kernels_bench_tools.notebooks.survey import cell_problems
from kernels_bench_tools.records.build import (
    BuildRun,
    CellRun,
    NotebookRun,
    code_digest,
    is_implementation,
    operator_of,
)
from kernels_bench_tools.records.codec import ignore, read_committed
from kernels_bench_tools.records.committed import cell_owner, record_file
from kernels_bench_tools.records.device import Device, current_device
from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Verdict
from kernels_bench_tools.results.compare import same_conditions
from kernels_bench_tools.results.export import text_table
from kernels_bench_tools.results.rows import Comparison, Source, compare_records, whole_record
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.text import title_from_name, visible

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_ADD_PACKAGE = "to use {} in a cell, add its package to `dependencies` in its header; files beside the notebook are not found"
_NOTEBOOK_HELP = "A path, OPERATOR/IMPLEMENTATION, or OPERATOR for all its implementations."


@takes_build_options()
def run_notebook(
    notebook: Annotated[str, typer.Argument(metavar="NOTEBOOK[:CELL]", help=_NOTEBOOK_HELP)],
    *,
    options: BuildOptions,
    strict: opt.Strict = False,
    json: opt.Json = False,
    verbose: opt.Verbose = False,
) -> int:
    """Run a notebook and compare it with the baseline.

    For an operator, print the ranking of its implementations and the results of each workload.

    Nothing is published. Cells measure in one process unless --processes is given; `kbt build` uses several.
    Results of an earlier build are reused. On a GPU the baseline is not run if it has committed records of three
    processes and the device was equally fast then, judged by its sentinels and peaks.
    """
    project = find_project_of([notebook])
    # A cell may be named after the path; `rpartition` would cut a path that contains a colon.
    target, _, cell_id = notebook.partition(":")
    names = _without_combining([project.relative(path) for path in project.find_notebooks([target])])
    targets = [f"{name}:{cell_id}" if cell_id else name for name in names]
    baselines_of = {name: _baselines_of(project, name) for name in names}
    baselines = {path for paths in baselines_of.values() for path in paths} - set(names)
    options = replace(options, rerun=tuple(targets) if options.rerun else False, quick=True)
    shown = names if len(names) == 1 else ()
    # A cluster's device is not known before its cells ran.
    known = {} if options.executor else committed_baselines(project, baselines, current_device())

    def run(options: BuildOptions) -> tuple[BuildRun, list[_CellResult]]:
        to_run = [*targets, *sorted(baselines - known.keys())]
        result = run_cells(project, to_run, options, verbose=verbose, figures_of=shown)
        return result, [
            _CellResult(project, result, baselines_of[entry.path], known, entry, cell)
            for entry in result.notebooks
            if entry.path in names
            for cell in entry.cells
            if cell.status is not None and cell_id in {"", cell.id}
        ]

    result, found = run(options)
    if known and not all(can_compare(one.records, known.values()) for one in found):
        known = {}
        result, found = run(replace(options, rerun=False))
    if not found:
        note(f"{notebook} has no cell to run")
    if json:
        print_json([one.as_data() for one in found])
    else:
        _print_results(found)
        _note_what_next(found)
    return finish(result, strict=strict)


def _without_combining(names: Sequence[str]) -> list[str]:
    """Return the notebooks without those that combine the records of others: they publish, and are no results."""
    measured = {operator_of(name) for name in names if is_implementation(name)}
    return [name for name in names if is_implementation(name) or operator_of(name) not in measured - {""}]


def _baselines_of(project: Project, name: str) -> list[str]:
    """Return the notebooks that an implementation may be compared with; only itself if it is a baseline.

    An operator of several functions has a baseline for each. One that selects workloads with the same literals as the
    implementation computes the same; if there is none, the records state which one does.
    """
    path = project.root / name
    paths = next((paths for paths in operators(project).values() if path in paths), [])
    notebooks = {project.relative(other): survey_notebook(project, other) for other in paths}
    found = [other for other, notebook in notebooks.items() if notebook.front.baseline]
    own = _selections(notebooks[name]) if name in notebooks else []
    same = [other for other in found if own and _selections(notebooks[other]) == own]
    return [name] if name in found else same or found


def _selections(notebook: Notebook) -> list[tuple[Any, Any]]:
    """Return what the calls of a notebook select of an operator: ``only=`` and ``layout=``; empty if unknown."""
    runs = [run.settings for cell in notebook.active_cells for run in find_runs(cell.code)]
    found = [(settings.get("only", ""), settings.get("layout", "")) for settings in runs]
    return [] if any(None in one for one in found) else found


class _Baseline(NamedTuple):
    title: str
    records: list[Record]


def committed_baselines(project: Project, baselines: Iterable[str], device: Device) -> dict[str, _Baseline]:
    """Return the committed records of baselines on a GPU, by notebook; all or none, and none of code that was changed."""
    found: dict[str, _Baseline] = {}
    for name in baselines if device.kind == "cuda" else ():
        operator = operator_of(name)
        path = record_file(project.root / operator, device.slug, PurePosixPath(name).stem)
        records = read_committed(path, operator, "", ignore) if path.exists() else []
        notebook = read_notebook(project, project.root / name)
        digests = {code_digest(cell.code) for cell in notebook.cells}
        if not records or {record.provenance.code_digest for record in records} - digests:
            return {}
        found[name] = _Baseline(f"{_title_of(notebook)} (committed records)", records)
    return found


def can_compare(candidate: Sequence[Record], baselines: Iterable[_Baseline]) -> bool:
    """Return whether for each of a candidate's results there is a baseline's of a device that was as fast."""
    measured = [record for one in baselines for record in one.records if record.outcome is Status.OK]
    ran = [record for record in candidate if record.outcome.ran]
    for workload in {record.workload for record in ran}:
        ours = [record for record in ran if record.workload == workload]
        first = ours[0]
        theirs = [
            record for record in measured if record.wl == first.wl and record.env.torch == first.env.torch
        ]
        if len(theirs) < FEWEST_PROCESSES or not same_conditions(ours, theirs):
            return False
    return True


@dataclass
class _CellResult:
    """A cell that was run, with what it is compared with."""

    project: Project
    result: BuildRun
    baselines: Sequence[str]
    committed: Mapping[str, _Baseline]
    """Baselines that were not run."""
    entry: NotebookRun
    cell: CellRun

    @property
    def operator(self) -> str:
        """The operator that the notebook implements, or empty."""
        return operator_of(self.entry.path) if is_implementation(self.entry.path) else ""

    @cached_property
    def records(self) -> list[Record]:
        """The cell's records."""
        return list(cell_records(self.project, self.cell, cell_owner(self.entry.path, self.result.device)))

    @cached_property
    def comparisons(self) -> tuple[str, list[Comparison]]:
        """The baselines' titles and a row for each workload."""
        workloads = {record.workload for record in self.records}
        measured = [record.wl for record in self.records]
        found = {
            path: _Baseline(known.title, [record for record in known.records if record.wl in measured])
            for path, known in self.committed.items()
        }
        for other in self.result.notebooks:
            if other.path in self.baselines and other.path not in self.committed:
                records = notebook_records(self.project, self.result, other.path)
                found[other.path] = _Baseline(_title_of(other), records)
        titles, theirs = [], []
        for one in found.values():
            # A failed cell's record without a workload applies to all of them.
            if len(self.baselines) == 1 or workloads & {"", *(record.workload for record in one.records)}:
                titles.append(one.title)
                theirs += one.records
        return " or ".join(titles), compare_records(self.records, theirs)

    def as_data(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        title, rows = self.comparisons
        return {
            **cell_data(f"{self.entry.path}:{self.cell.id}", self.cell),
            "baseline": title,
            "processes": count_processes(self.records),
            "rows": rows,
        }

    def source(self) -> Source:
        """Return the records for a ranking; for a cell without any, one with its status."""
        records, cell = self.records, self.cell
        if not records and cell.status is not None:
            stem = PurePosixPath(self.entry.path).stem
            records = [whole_record(stem, cell.status, cell.reason, self.result.device)]
        return Source(records=records, front=self.entry.front)


def _print_results(shown: Sequence[_CellResult]) -> None:
    """Print a ranking for each operator of which several implementations ran, and a table for each other cell."""
    single: list[_CellResult] = []
    for operator in dict.fromkeys(one.operator for one in shown):
        group = [one for one in shown if one.operator == operator]
        if not operator or len({one.entry.path for one in group}) == 1:
            single += group
            continue
        title = title_from_name(operator.rpartition("/")[2])
        # A cell that prints something else has no row.
        ranked = [one for one in group if one.records or one.cell.status is not Status.OK]
        summary = summarize(operator, title, [one.source() for one in ranked])
        print(visible(text_table(summary, terminal_width())))
    for one in single:
        _print_comparison(one)


def _print_comparison(one: _CellResult) -> None:
    title, rows = one.comparisons
    print_heading(f"{_title_of(one.entry)} on {one.result.device.name}{processes_suffix(one.records)}")
    if rows and rows[0].status.failed and len({(row.status, row.reason, row.p50_ms) for row in rows}) == 1:
        rows = [msgspec.structs.replace(rows[0], workload="", baseline_ms=None)]  # the same failure of all
    if rows:
        print(comparison_table(rows, title, terminal_width()))
    elif one.cell.stdout:
        printed = (one.project.root / one.cell.stdout).read_text(encoding="utf-8", errors="replace")
        print(visible(printed), end="")
    if one.cell.status and one.cell.status.failed and not rows:
        print(visible(f"{one.cell.status.label}: {one.cell.reason}"))
    outcomes = {entry.outcome for entry in one.records}
    raised = any(outcome.failed and not outcome.ran for outcome in outcomes)
    if one.cell.stderr and (one.cell.exit_code or raised):  # the log has the traceback
        if place := _place_of_error(one):
            print(visible(place))
        print(visible(f"log: {short_path(one.project.root / one.cell.stderr)}"))


def _place_of_error(one: _CellResult) -> str:
    """Return the notebook's line in the last traceback of a cell's log, ``NOTEBOOK:LINE: CODE``; empty if there is none."""
    log = (one.project.root / one.cell.stderr).read_text(encoding="utf-8", errors="replace")
    script = re.escape(f"{PurePosixPath(one.entry.path).stem}__{one.cell.id}.py")
    found = re.findall(rf'/{script}", line (\d+).*\n +(.+)', log)
    if not found:
        return ""
    number, code = one.cell.line + int(found[-1][0]), found[-1][1]
    lines = ["", *read_file(one.project.root / one.entry.path).decode(errors="replace").splitlines()]
    # Not if the code is in another file, or a header was added to it.
    is_there = number < len(lines) and lines[number].strip() == code.strip()
    return f"{one.entry.path}:{number}: {code}" if is_there else ""


def _note_what_next(shown: Sequence[_CellResult]) -> None:
    """Say what to do about mistakes in cells that failed, results that are stored ones, and rows without a verdict."""
    failed = {one.entry.path: one for one in shown if one.cell.status and one.cell.status.failed}
    for path, one in failed.items():
        mistakes = cell_problems([read_notebook(one.project, one.project.root / path)])
        for text in mistakes or map(_ADD_PACKAGE.format, _MISSING_MODULE.findall(one.cell.reason)):
            note(str(text))
    if any(one.cell.cached and one.records for one in shown):
        note("stored results, since nothing changed; --rerun measures again")
    rows = [row for one in shown if one.records for row in one.comparisons[1]]
    if any(row.verdict is Verdict.FEW_PROCESSES and row.processes < FEWEST_PROCESSES for row in rows):
        note(f"a verdict needs {FEWEST_PROCESSES} processes: --processes {FEWEST_PROCESSES}")


def _title_of(notebook: NotebookRun | Notebook) -> str:
    return notebook.front.title or title_from_name(PurePosixPath(notebook.path).stem)
