"""``kbt upgrade``: set ``exclude-newer`` in the headers of cells, and change nothing else in the files."""

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
from kernels_bench_tools.notebooks.header import (
    EXCLUDE_NEWER,
    has_undated_packages,
    read_header,
    uv_settings,
)
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.survey import select_notebooks, survey_targets

_LINE = re.compile(
    rb"(?P<before>[ \t]*#[ \t]*(?:tool\.uv\.)?exclude-newer[ \t]*=[ \t]*(?P<quote>[\"']))(?P<date>[^\"']*)(?P=quote)"
)
_BEGIN, _END = re.compile(rb"[ \t]*# /// script[ \t]*\r?"), re.compile(rb"[ \t]*# ///[ \t]*\r?")


@dataclass(frozen=True)
class DateChange:
    """The new date of one header."""

    path: Path
    where: str
    """File within the project, and line."""
    before: str
    after: str


def parse_moment(text: str, now: datetime) -> str:
    """Return a date in the format of headers, ``2026-11-20T00:00:00Z``.

    Args:
        text: ``YYYY-MM-DD``, or a date and time with a time zone.
        now: The latest date that is allowed.

    Raises:
        ProjectError: It is not a date, or in the future.
    """
    expected = "A date such as 2026-11-20, or a moment such as 2026-11-20T12:00:00Z"
    try:
        moment = datetime.combine(date.fromisoformat(text), time(), UTC)
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


def find_changes(project: Project, targets: Sequence[str], after: str) -> list[DateChange]:
    """Return the headers of the selected notebooks, or of all, whose date is not ``after``.

    Raises:
        NotebooksError: The notebooks have errors.
        NotebookError: A date does not have a line of its own.
        ProjectError: A target matches nothing.
    """
    changes = {
        (change.path, change.where): change
        for notebook, cell in _selected_cells(project, targets)
        for change in _changes(project, notebook, cell, after)
    }
    return [change for change in changes.values() if change.before != after]


def count_undated(project: Project, targets: Sequence[str]) -> int:
    """Return how many cells of the selected notebooks install packages without a date."""
    return sum(has_undated_packages(cell.code, cell.deps) for _, cell in _selected_cells(project, targets))


def apply_changes(changes: Sequence[DateChange]) -> None:
    """Write the new dates; every other byte of the files is kept.

    Raises:
        ProjectError: A file cannot be written.
    """
    for path in dict.fromkeys(change.path for change in changes):
        dates = {
            int(one.where.rpartition(":")[2]) - 1: one.after.encode() for one in changes if one.path == path
        }
        try:
            lines = path.read_bytes().split(b"\n")
            lines = [_with_date(line, dates.get(number)) for number, line in enumerate(lines)]
            write_atomically(path, b"\n".join(lines))
        except OSError as error:
            raise ProjectError(str(path), f"cannot be written ({error.strerror})") from None


def _selected_cells(project: Project, targets: Sequence[str]) -> Iterator[tuple[Notebook, Cell]]:
    survey, _ = survey_targets(project, targets)
    for name in select_notebooks(project, survey, targets):
        for cell in survey.notebooks[name].active_cells:
            yield survey.notebooks[name], cell


def _changes(project: Project, notebook: Notebook, cell: Cell, after: str) -> list[DateChange]:
    dated = uv_settings(read_header(cell.code)).get(EXCLUDE_NEWER)
    if dated is None:
        return []
    path, first = notebook.path, cell.file_line
    if cell.script is not None:
        path, first = Path(os.path.normpath(path.parent / cell.script)), 0
    lines = path.read_bytes().split(b"\n")[first : first + cell.code.count("\n") + 1]
    found = [(first + number, match) for number, match in _dates(lines)]
    if [match["date"].decode(errors="replace") for _, match in found] != [dated]:
        where = f"{notebook.name}:{cell.file_line}"
        what = f"the {EXCLUDE_NEWER} of cell {cell.id!r} cannot be changed"
        expected = f'A line of its own below `# [tool.uv]`: `# {EXCLUDE_NEWER} = "YYYY-MM-DDT00:00:00Z"`'
        raise NotebookError(where, what, expected)
    name = project.relative(path)
    return [DateChange(path, f"{name}:{number + 1}", str(dated), after) for number, _ in found]


def _dates(lines: Sequence[bytes]) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Yield number and match of the lines of the first header that set the date."""
    inside = False
    for number, line in enumerate(lines):
        if not inside:
            inside = _BEGIN.fullmatch(line) is not None
        elif _END.fullmatch(line):
            return
        elif match := _LINE.match(line):
            yield number, match


def _with_date(line: bytes, after: bytes | None) -> bytes:
    match = _LINE.match(line) if after is not None else None
    if after is None or match is None:
        return line
    return line[: match.start("date")] + after + line[match.end("date") :]
