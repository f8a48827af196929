"""``kbt upgrade``: set ``exclude-newer`` in the headers of cells, and change nothing else in the files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernels_bench_tools.errors import NotebookError, ProjectError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.header import (
    EXCLUDE_NEWER,
    has_undated_packages,
    header_lines,
    read_header,
    uv_settings,
)
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.survey import select_notebooks, survey_targets

_LINE = re.compile(
    rb"(?P<before>[ \t]*#[ \t]*(?:tool\.uv\.)?exclude-newer[ \t]*=[ \t]*(?P<quote>[\"']))(?P<date>[^\"']*)(?P=quote)"
)


@dataclass(frozen=True)
class DateChange:
    """The new date of one header."""

    path: Path
    line: int
    """Index of the line in the file."""
    where: str
    """File within the project, and line."""
    before: str
    after: str


def parse_moment(text: str, now: datetime) -> str:
    """Return a date, or a moment with a time zone, as in headers: ``2026-11-20T00:00:00Z``.

    One that is malformed, or later than ``now``, is a ``ProjectError``.
    """
    expected = "A date such as 2026-11-20, or a moment such as 2026-11-20T12:00:00Z"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ProjectError(f"--to {text}", "is not a date", expected) from None
    if moment.tzinfo is None:
        if len(text) > len("2026-11-20"):
            raise ProjectError(f"--to {text}", "has no time zone", expected, "Add a Z for UTC")
        moment = moment.replace(tzinfo=UTC)
    moment = moment.astimezone(UTC)
    if moment > now:
        what = f"is in the future: it is {now:%Y-%m-%dT%H:%M:%SZ}"
        raise ProjectError(f"--to {text}", what, "A date whose packages are all published")
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def find_changes(project: Project, targets: Sequence[str], after: str) -> tuple[list[DateChange], int]:
    """Return the headers of the selected notebooks, or of all, whose date is not ``after``.

    The number is that of cells which install packages without a date. A date that does not have a line of its own is
    a ``NotebookError``.
    """
    survey, _ = survey_targets(project, targets)
    notebooks = [survey.notebooks[name] for name in select_notebooks(project, survey, targets)]
    cells = [(notebook, cell) for notebook in notebooks for cell in notebook.active_cells]
    found = (change for notebook, cell in cells for change in _changes(project, notebook, cell, after))
    # Notebooks may share a script.
    changes = list(dict.fromkeys(change for change in found if change.before != after))
    return changes, sum(has_undated_packages(cell.code, cell.deps) for _, cell in cells)


def apply_changes(changes: Sequence[DateChange]) -> None:
    """Write the new dates; every other byte of the files is kept."""
    for change in changes:
        try:
            lines = change.path.read_bytes().split(b"\n")
            line = lines[change.line]
            if match := _LINE.match(line):
                lines[change.line] = (
                    line[: match.start("date")] + change.after.encode() + line[match.end("date") :]
                )
            write_atomically(change.path, b"\n".join(lines))
        except OSError as error:
            raise ProjectError(str(change.path), f"cannot be written ({error.strerror})") from None


def _changes(project: Project, notebook: Notebook, cell: Cell, after: str) -> list[DateChange]:
    dated = uv_settings(read_header(cell.code)).get(EXCLUDE_NEWER)
    if dated is None:
        return []
    path, first = notebook.path, cell.file_line
    if cell.script is not None:
        path, first = Path(os.path.normpath(path.parent / cell.script)), 0
    lines = path.read_bytes().split(b"\n")
    numbers = [first + number for number in header_lines(cell.code)]
    found = [(number, match) for number in numbers if (match := _LINE.match(lines[number]))]
    if [match["date"].decode(errors="replace") for _, match in found] != [dated]:
        where = f"{notebook.name}:{cell.file_line}"
        what = f"the {EXCLUDE_NEWER} of cell {cell.id!r} cannot be changed"
        expected = f'A line of its own below `# [tool.uv]`: `# {EXCLUDE_NEWER} = "YYYY-MM-DDT00:00:00Z"`'
        raise NotebookError(where, what, expected)
    name = project.relative(path)
    return [DateChange(path, number, f"{name}:{number + 1}", str(dated), after) for number, _ in found]
