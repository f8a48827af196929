"""``kbt upgrade``: change in the headers of cells the date of their packages, or where this one comes from.

Nothing else in the files changes.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernels_bench_tools.errors import NotebookError, ProjectError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.harness import Harness, harness_lines
from kernels_bench_tools.notebooks.header import (
    EXCLUDE_NEWER,
    has_undated_packages,
    header_lines,
    read_header,
    uv_settings,
)
from kernels_bench_tools.notebooks.project import STATE_FOLDER, Project
from kernels_bench_tools.notebooks.survey import Survey, select_notebooks, survey_targets

_LINE = re.compile(
    rb"(?P<before>[ \t]*#[ \t]*(?:tool\.uv\.)?exclude-newer[ \t]*=[ \t]*(?P<quote>[\"']))(?P<date>[^\"']*)(?P=quote)"
)
_KBT = re.compile(r"\[\s*tool\s*\.\s*kbt\s*\]")
_SETTING = re.compile(r"\s*harness\s*=")


@dataclass(frozen=True)
class HeaderChange:
    """New lines of one header."""

    path: Path
    first: int
    """Index in the file of the first of these lines."""
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    said: str
    """File within the project, line and, of a date, what changes."""


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


def find_changes(project: Project, targets: Sequence[str], after: str) -> tuple[list[HeaderChange], int]:
    """Return the headers of the selected notebooks, or of all, whose date is not ``after``.

    The number counts cells that install packages without a date. A date that does not have a line of its own is
    a ``NotebookError``.
    """
    survey, _ = survey_targets(project, targets)
    notebooks = [survey.notebooks[name] for name in select_notebooks(project, survey, targets)]
    cells = [(notebook, cell) for notebook in notebooks for cell in notebook.active_cells]
    changes = _once(_date_change(project, notebook, cell, after) for notebook, cell in cells)
    return changes, sum(has_undated_packages(cell.code, cell.deps) for _, cell in cells)


def find_harness_changes(project: Project) -> list[HeaderChange]:
    """Return the headers in which this package does not come from where ``[tool.kbt] harness`` says.

    A header that cannot be changed line by line is a ``NotebookError``.
    """
    survey, _ = survey_targets(project, [])
    notebooks = survey.notebooks.values()
    cells = ((notebook, cell) for notebook in notebooks for cell in notebook.active_cells)
    return _once(_harness_change(project, notebook, cell) for notebook, cell in cells)


def harness_advice(project: Project, survey: Survey) -> list[str]:
    """Return a line for each notebook in which this package comes from elsewhere than the project says."""
    advice = (_harness_advice(project, notebook) for notebook in survey.notebooks.values())
    return [line for line in advice if line]


def apply_changes(changes: Iterable[HeaderChange]) -> None:
    """Write the new lines; every other byte of the files is kept."""
    for change in sorted(changes, key=lambda change: change.first, reverse=True):
        lines = change.path.read_bytes().split(b"\n")
        lines[change.first : change.first + len(change.before)] = change.after
        write_atomically(change.path, b"\n".join(lines))


def with_harness(project: Project, path: Path, text: str) -> str:
    """Return the text of a notebook for ``path`` whose first header has this package as the project says."""
    inside = header_lines(text)
    lines = text.split("\n")
    found = _harness_lines(project, path, [lines[number] for number in inside])
    if found is None:
        raise _not_changeable(project.relative(path), "its cell")
    return "\n".join([*lines[: inside.start], *found, *lines[inside.stop :]])


def write_setting(project: Project, harness: Harness) -> None:
    """Set ``[tool.kbt] harness`` in the project's ``pyproject.toml``, where every other byte is kept."""
    path = project.root / "pyproject.toml"
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        text = ""
    expected = tomllib.loads(text)
    setting = f"harness = {harness.setting()}"
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if _KBT.match(line)), None)
    if start is not None:
        end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("[")), len(lines))
        old = next((n for n in range(start + 1, end) if _SETTING.match(lines[n])), None)
        expected["tool"]["kbt"]["harness"] = tomllib.loads(setting)["harness"]
        line = setting + ("\r" if lines[start].endswith("\r") else "")
        lines[start + 1 if old is None else old : start + 1 if old is None else old + 1] = [line]
    try:
        same = start is not None and tomllib.loads("\n".join(lines)) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ProjectError(
            str(path), f"`{setting}` cannot be added", "A table [tool.kbt] on lines of its own"
        )
    write_atomically(path, "\n".join(lines).encode())


def _harness_advice(project: Project, notebook: Notebook) -> str:
    for cell in notebook.active_cells:
        try:
            change = _harness_change(project, notebook, cell)
        except NotebookError as error:
            return str(error)
        if change:
            return (
                f"{notebook.name}:{cell.file_line}: cell {cell.id!r} does not take this package from "
                f"{project.harness.setting()}, as the project does. `kbt upgrade --harness` changes it."
            )
    return ""


def _harness_change(project: Project, notebook: Notebook, cell: Cell) -> HeaderChange | None:
    inside, code = header_lines(cell.code), cell.code.split("\n")
    lines = [code[number] for number in inside]
    try:
        found = _harness_lines(project, notebook.path, lines)
    except (ValueError, RecursionError):
        return None  # an error of the notebook
    if found == lines:
        return None
    path, first = _position(notebook, cell)
    written = path.read_bytes().split(b"\n")[first + inside.start : first + inside.stop]
    if found is None or [line.decode(errors="replace").rstrip("\r") for line in written] != lines:
        raise _not_changeable(f"{notebook.name}:{cell.file_line}", f"cell {cell.id!r}")
    end = "\r" if written[0].endswith(b"\r") else ""
    after = tuple(f"{line}{end}".encode() for line in found)
    said = f"{project.relative(path)}:{first or 1}"
    return HeaderChange(path, first + inside.start, tuple(written), after, said)


def _harness_lines(project: Project, path: Path, lines: Sequence[str]) -> list[str] | None:
    folder = path.parent / STATE_FOLDER / "cells"
    harness = project.harness
    return harness_lines(lines, harness.header_source(project.root, folder), harness.requirement)


def _not_changeable(where: str, cell: str) -> NotebookError:
    what = f"where {cell} gets this package from cannot be changed"
    return NotebookError(
        where, what, "`dependencies`, and below it `[tool.uv.sources]`, on lines of their own"
    )


def _position(notebook: Notebook, cell: Cell) -> tuple[Path, int]:
    """Return the file that holds a cell's code, and the index of the code's first line in it."""
    if cell.script is not None:
        return Path(os.path.normpath(notebook.path.parent / cell.script)), 0
    return notebook.path, cell.file_line


def _date_change(project: Project, notebook: Notebook, cell: Cell, after: str) -> HeaderChange | None:
    before = uv_settings(read_header(cell.code)).get(EXCLUDE_NEWER)
    if before is None or before == after:
        return None
    path, first = _position(notebook, cell)
    lines = path.read_bytes().split(b"\n")
    numbers = [first + number for number in header_lines(cell.code)]
    found = [(number, match) for number in numbers if (match := _LINE.match(lines[number]))]
    if [match["date"].decode(errors="replace") for _, match in found] != [before]:
        where = f"{notebook.name}:{cell.file_line}"
        what = f"the {EXCLUDE_NEWER} of cell {cell.id!r} cannot be changed"
        expected = f'A line of its own below `# [tool.uv]`: `# {EXCLUDE_NEWER} = "YYYY-MM-DDT00:00:00Z"`'
        raise NotebookError(where, what, expected)
    [(number, match)] = found
    line = lines[number]
    changed = line[: match.start("date")] + after.encode() + line[match.end("date") :]
    said = f"{project.relative(path)}:{number + 1}: {before} -> {after}"
    return HeaderChange(path, number, (line,), (changed,), said)


def _once(changes: Iterable[HeaderChange | None]) -> list[HeaderChange]:
    """Return each change once: notebooks may share a script."""
    return list(dict.fromkeys(change for change in changes if change))
