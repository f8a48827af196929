"""What verbs print after a build: JSON, paths, counts, and the cells that failed."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import find_struct
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun
from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.tables import table, wrapped
from kernels_bench_tools.text.words import abbreviated, plural

if TYPE_CHECKING:
    from kernels_bench_tools.notebooks.document import Notebook
    from kernels_bench_tools.results.counted import Counted


def print_json(data: Any) -> None:
    print(visible(msgspec.json.encode(data).decode()))


def note(text: str) -> None:
    print(visible(f"note: {text}"), file=sys.stderr)


def note_unused(options: Mapping[str, object], why: str) -> None:
    """Say which of these options were given, by name, although they have no effect."""
    if given := [name for name, value in options.items() if value]:
        print(
            f"note: {' and '.join(given)} {'have' if given[1:] else 'has'} no effect {why}", file=sys.stderr
        )


def short_path(path: Path) -> str:
    """Return ``path`` relative to the current folder if it is below it, else absolute."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def terminal_width() -> int:
    """Return the columns of the terminal, or of ``COLUMNS``; 80 where output is no terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def print_heading(text: str) -> None:
    """Print what the lines below are about, in bold on a terminal."""
    typer.secho("\n".join(wrapped(visible(text), terminal_width())), bold=True)


def print_wrapped(text: str) -> None:
    """Print a text in lines as wide as the terminal, in which no word is broken."""
    filled = textwrap.fill(
        visible(text),
        terminal_width(),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print(filled)


def print_table(
    rows: Iterable[Sequence[str]],
    right: Collection[int] = (),
    whole: Collection[int] = (),
    optional: Sequence[int] = (),
) -> None:
    """Print a table (see :func:`table`) that is as wide as the terminal."""
    print(table(rows, right, terminal_width(), whole, optional))


def last_build(project: Project) -> BuildRun | None:
    """Return the results of the last build; None if there was none, or its file cannot be read."""
    return find_struct(project.state / "build.json", BuildRun)


def known_records(
    project: Project, operator: str, files: Iterable[Path], build: BuildRun | None
) -> tuple[dict[str, Notebook], Counted]:
    """Return an operator's notebooks by implementation, as they are now, and what counts: committed records, and a build's."""
    from kernels_bench_tools.notebooks.document import survey_notebook  # not every verb needs them
    from kernels_bench_tools.results.counted import counted

    notebooks = {
        notebook.implementation: notebook for notebook in (survey_notebook(project, it) for it in files)
    }
    fronts = {name: notebook.front for name, notebook in notebooks.items()}
    return notebooks, counted(project.root, operator, build, fronts)


def finished_cells(result: BuildRun) -> list[tuple[NotebookRun, CellRun]]:
    """Return each cell that has ended, in this build or an earlier one, with its notebook."""
    return [
        (notebook, cell)
        for notebook in result.notebooks
        for cell in notebook.cells
        if cell.status is not None
    ]


def cell_data(notebook: NotebookRun, cell: CellRun) -> dict[str, Any]:
    return {
        "cell": f"{notebook.path}:{cell.id}",
        "status": cell.status,
        "reason": cell.reason,
        "workloads": cell.workloads,
        "expected": cell.expected,
        "cached": cell.cached,
        "seconds": round(cell.seconds, 3),
        "exit_code": cell.exit_code,
    }


def summarize_build(result: BuildRun) -> str:
    """Return one line that counts the cells of a command by how they ended."""
    cells = [cell for _, cell in _own_cells(result)]
    unsupported = sum(cell.status is Status.UNSUPPORTED for cell in cells)
    started = [cell for cell in cells if cell.exit_code is not None or cell.status is not Status.UNSUPPORTED]
    cached = sum(cell.cached for cell in started)
    ran, failed = len(started) - cached, sum(_is_wrong(cell) for cell in cells)
    stored = sum(_is_wrong(cell) and cell.cached for cell in cells)
    again = f", {stored} of them not run again (see --retry-failed)" if stored else ""
    return f"{plural(ran, 'cell')} ran, {cached} unchanged, {unsupported} unsupported here, {failed} failed{again}"


def print_failures(result: BuildRun, *, strict: bool, see: str = "") -> int:
    """Print on stderr which cells of a command failed, and return its exit code.

    Cells of other commands, whose last results the report shows as well, do not count. With ``strict``, cells that are
    unsupported do. ``see`` is where the reasons are.
    """
    cells = _own_cells(result)
    for notebook, cell in cells:
        if cell.expected:
            note(f"{notebook.path} is {_outcome(cell)}, as expected: {cell.expected}")
        elif cell.workloads.keys() == {Status.OK}:
            for status in notebook.front.expect:
                note(f"{notebook.path} expects {status}, but no workload is. Remove it from `expect`")
    wrong = [
        f"{f'{notebook.path}:{cell.id}'.removesuffix(':benchmark')} ({_outcome(cell)})"
        for notebook, cell in cells
        if _is_wrong(cell) or (strict and cell.status is Status.UNSUPPORTED and not cell.expected)
    ]
    broken = sorted(result.left_out.keys() & set(result.selected))
    if broken:
        said = f"kbt: {plural(len(broken), 'notebook')} left out because of errors, which kbt check lists: {abbreviated(broken)}"
        print(visible(said), file=sys.stderr)
    if not wrong:
        return FAILURE if broken else 0
    where = f" See {see}" if see else ""
    said = f"kbt: {len(wrong)} of {plural(len(cells), 'cell')} failed: {abbreviated(wrong)}.{where}"
    print(visible(said), file=sys.stderr)
    return FAILURE


def _own_cells(result: BuildRun) -> list[tuple[NotebookRun, CellRun]]:
    selected = set(result.selected)
    cells = finished_cells(result)
    return [(notebook, cell) for notebook, cell in cells if f"{notebook.path}:{cell.id}" in selected]


def _is_wrong(cell: CellRun) -> bool:
    return cell.status is not None and cell.status.failed and not cell.expected


def _outcome(cell: CellRun) -> str:
    assert cell.status is not None
    return ": ".join(filter(None, (cell.status.label, cell.counts)))


def notebook_records(project: Project, build: BuildRun, path: str) -> list[Record]:
    """Return the records of a notebook's cells in a build; lines that are none are printed on stderr."""
    from kernels_bench_tools.results.counted import notebook_sources  # and numpy

    sources = notebook_sources(project.root, build, path, note_problem)
    return [record for source in sources for record in source.records]


def count_processes(records: Iterable[Record]) -> int:
    return len({record.process for record in records if record.outcome.ran})


def processes_suffix(records: Iterable[Record]) -> str:
    """Return the number of processes as the end of a title; empty if nothing was measured."""
    count = count_processes(records)
    return f", {plural(count, 'process', 'es')}" if count else ""


def note_problem(error: RecordError) -> None:
    """Print that a line of a file is left out, and why, on stderr."""
    note(f"left out: {error}")
