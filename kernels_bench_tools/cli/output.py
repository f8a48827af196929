"""What verbs print after a build: JSON, paths, counts, and rows above the roofline."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.schema.build import BuildRun, CellRun
from kernels_bench_tools.schema.record import Record, Status
from kernels_bench_tools.schema.record_io import Owner, ignore, is_plain, read_records
from kernels_bench_tools.text import visible

FAILURES = frozenset(Status) - {Status.OK, Status.UNSUPPORTED}


def print_json(data: Any) -> None:
    """Print ``data`` as JSON on one line."""
    print(visible(msgspec.json.encode(data).decode()))


def note(text: str) -> None:
    """Print a note on stderr."""
    print(visible(f"note: {text}"), file=sys.stderr)


def short_path(path: Path) -> str:
    """Return ``path`` relative to the current folder if it is below it, else absolute."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def few(names: Sequence[str], count: int = 3) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - count
    return ", ".join(names[:count]) + (f" and {more} more" if more > 0 else "")


def plural(count: int, word: str, ending: str = "s") -> str:
    """Return a count with its noun.

    >>> plural(2, "process", "es")
    '2 processes'
    """
    return f"{count} {word}{'' if count == 1 else ending}"


def finished_cells(result: BuildRun) -> list[tuple[str, CellRun]]:
    """Return ``notebook:cell`` and run of each cell that has ended, in this build or an earlier one."""
    return [
        (f"{notebook.path}:{cell.id}", cell)
        for notebook in result.notebooks
        for cell in notebook.cells
        if cell.status is not None
    ]


def count_failures(result: BuildRun) -> int:
    """Return how many cells failed; an unsupported cell did not."""
    return sum(cell.status in FAILURES for _, cell in finished_cells(result))


def summarize_build(result: BuildRun) -> str:
    """Return one line that counts cells by how they ended."""
    cells = [cell for _, cell in finished_cells(result)]
    unsupported = sum(cell.status is Status.UNSUPPORTED for cell in cells)
    started = [cell for cell in cells if cell.exit_code is not None or cell.status is not Status.UNSUPPORTED]
    cached = sum(cell.cached for cell in started)
    ran = len(started) - cached
    return f"{plural(ran, 'cell')} ran, {cached} unchanged, {unsupported} unsupported here, {count_failures(result)} failed"


def cell_records(project: Project, cell: CellRun, owner: Owner | None = None) -> Iterator[Record]:
    """Yield the records that a cell wrote, in all its processes; those that are not of ``owner`` on stderr."""
    for name, path in cell.artifacts.items():
        if name.endswith(".jsonl") and not is_plain(project.root / path):
            yield from read_records(project.root / path, name, note_problem if owner else ignore, owner)


def note_problem(error: RecordError) -> None:
    """Print that a line of a file is left out, and why, on stderr."""
    note(f"left out: {error}")


def report_impossible(project: Project, cells: Iterable[tuple[str, CellRun]]) -> int:
    """Print each row above the roofline on stderr, and return how many there are."""
    found = {
        (name, record.workload): record.err.msg if record.err else "no reason recorded"
        for name, cell in cells
        for record in cell_records(project, cell)
        if record.outcome is Status.EXCEEDS_PHYSICS
    }
    for (name, workload), reason in found.items():
        print(visible(f"kbt: {name}: {workload} is above the roofline: {reason}"), file=sys.stderr)
    return len(found)
