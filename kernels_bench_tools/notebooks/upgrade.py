"""Moves the date in cells' headers as of which their packages are resolved, and nothing else in the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path

from kernels_bench_tools.errors import NotebookError, ProjectError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.header import read_header, uv_settings
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.selection import select_notebooks
from kernels_bench_tools.run.plan import survey_targets

KEY = "exclude-newer"
_LINE = re.compile(
    rb"(?P<before>[ \t]*#[ \t]*(?:tool\.uv\.)?exclude-newer[ \t]*=[ \t]*(?P<quote>[\"']))(?P<date>[^\"']*)(?P=quote)"
)
_OPENS, _CLOSES = re.compile(rb"[ \t]*# /// script[ \t]*\r?"), re.compile(rb"[ \t]*# ///[ \t]*\r?")


@dataclass(frozen=True)
class Move:
    """A date that is moved."""

    path: Path
    where: str
    """File within the project, and line."""
    before: str
    after: str


def parse_moment(text: str, now: datetime) -> str:
    """Return a date as headers have it, ``2026-11-20T00:00:00Z``.

    Args:
        text: ``YYYY-MM-DD``, or a moment with a time zone.
        now: What must not be behind it.

    Raises:
        ProjectError: It is no date, or in the future.
    """
    expected = "A date such as 2026-11-20, or a moment such as 2026-11-20T12:00:00Z"
    try:
        day = date.fromisoformat(text)
        moment = datetime.combine(day, time(), UTC)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ProjectError(f"--to {text}", "is not a date", expected) from None
        if moment.tzinfo is None:
            raise ProjectError(f"--to {text}", "has no time zone", expected, "Add a Z for UTC") from None
    moment = moment.astimezone(UTC)
    if moment > now:
        what = f"is in the future: it is {now:%Y-%m-%dT%H:%M:%SZ}"
        raise ProjectError(f"--to {text}", what, "A date whose packages are all published")
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def find_moves(project: Project, targets: Sequence[str], after: str) -> list[Move]:
    """Return the dates to be moved to ``after`` in the notebooks that ``targets`` name; in all for none.

    Raises:
        NotebooksError: Something is wrong with the notebooks concerned.
        NotebookError: A date is not written so that its line alone can be changed.
        ProjectError: A target names nothing.
    """
    survey, _ = survey_targets(project, targets)
    names = select_notebooks(project, survey, targets)
    moves = {
        (move.path, move.where): move
        for name in names
        for cell in survey.notebooks[name].cells
        if not cell.commented
        for move in _moves(project, survey.notebooks[name], cell, after)
    }
    return [move for move in moves.values() if move.before != after]


def count_undated(project: Project, targets: Sequence[str]) -> int:
    """Return how many cells of these notebooks install packages without a date to move."""
    survey, _ = survey_targets(project, targets)
    names = select_notebooks(project, survey, targets)
    cells = (cell for name in names for cell in survey.notebooks[name].cells if not cell.commented)
    headers = (read_header(cell.code) or {"dependencies": cell.deps} for cell in cells)
    return sum(bool(one.get("dependencies")) and KEY not in uv_settings(one) for one in headers)


def apply_moves(moves: Sequence[Move]) -> None:
    """Write the moves; every other byte stays what it is.

    Raises:
        ProjectError: A file cannot be written.
    """
    for path in dict.fromkeys(move.path for move in moves):
        numbers = {
            int(move.where.rpartition(":")[2]) - 1: move.after.encode() for move in moves if move.path == path
        }
        try:
            lines = path.read_bytes().split(b"\n")
            lines = [_with_date(line, numbers.get(number)) for number, line in enumerate(lines)]
            write_atomically(path, b"\n".join(lines))
        except OSError as error:
            raise ProjectError(str(path), f"cannot be written ({error.strerror})") from None


def _moves(project: Project, notebook: Notebook, cell: Cell, after: str) -> list[Move]:
    dated = uv_settings(read_header(cell.code)).get(KEY)
    if dated is None:
        return []
    path = notebook.path
    if cell.script is not None:
        path = Path(os.path.normpath(notebook.path.parent / cell.script))
    name = project.relative(path)
    # Of a notebook, the fence is the line before the code's first.
    first = cell.file_line if cell.script is None else 0
    count = cell.code.count("\n") + 1
    lines = path.read_bytes().split(b"\n")[first:]
    lines = lines[:count] if cell.script is None else lines
    found = [(first + number, match) for number, match in _dates(lines)]
    if [match["date"].decode(errors="replace") for _, match in found] != [dated]:
        where = f"{notebook.name}:{cell.file_line}"
        what = f"the {KEY} of cell {cell.id!r} cannot be moved"
        expected = f'A line of its own below `# [tool.uv]`: `# {KEY} = "YYYY-MM-DDT00:00:00Z"`'
        raise NotebookError(where, what, expected)
    return [Move(path, f"{name}:{number + 1}", str(dated), after) for number, _ in found]


def _dates(lines: Sequence[bytes]) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Yield the lines of a header that hold its date."""
    inside = False
    for number, line in enumerate(lines):
        if not inside:
            inside = _OPENS.fullmatch(line) is not None
        elif _CLOSES.fullmatch(line):
            return
        elif match := _LINE.match(line):
            yield number, match


def _with_date(line: bytes, after: bytes | None) -> bytes:
    if after is None:
        return line
    match = _LINE.match(line)
    assert match is not None  # it was found there
    return line[: match.start("date")] + after + line[match.end("date") :]
