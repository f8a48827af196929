"""``kbt upgrade``: change in the headers of cells the date of their packages, or where this one comes from.

Nothing else in the files changes.
"""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kernels_bench_tools.errors import NotebookError, ProjectError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.notebooks import harness as own
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.header import (
    EXCLUDE_NEWER,
    has_undated_packages,
    parse_content,
    read_header,
    split_header,
    uv_settings,
)
from kernels_bench_tools.notebooks.project import STATE_FOLDER, Project
from kernels_bench_tools.notebooks.survey import Survey, select_notebooks, survey_targets

_DATE = re.compile(rf"(?m)^(# *(?:tool\.uv\.)?{EXCLUDE_NEWER} *= *)([\"'])[^\"'\n]*\2")
_KBT = re.compile(r"(?m)^\[ *tool *\. *kbt *\].*\n(?P<body>(?:^(?!\[).*\n?)*)")
_SETTING = re.compile(r"(?m)^ *harness *=.*\n?")


@dataclass(frozen=True)
class HeaderChange:
    path: Path
    line: int
    """Index in the file of the first line of the content."""
    before: str
    after: str
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
    survey, _ = survey_targets(project, targets, strict=True)
    notebooks = [survey.notebooks[name] for name in select_notebooks(project, survey, targets)]
    cells = [(notebook, cell) for notebook in notebooks for cell in notebook.active_cells]
    changes: list[HeaderChange] = []
    for notebook, cell in cells:
        header = copy.deepcopy(read_header(cell.code))
        before = uv_settings(header).get(EXCLUDE_NEWER)
        if header is None or before is None or before == after:
            continue
        header["tool"]["uv"][EXCLUDE_NEWER] = after
        content = split_header(cell.code)[1]
        date = _DATE.search(content)
        changed = _DATE.sub(rf"\g<1>\g<2>{after}\g<2>", content)
        if date is None or parse_content(changed) != header:
            where, what = f"{notebook.name}:{cell.file_line}", f"the {EXCLUDE_NEWER} of cell {cell.id!r}"
            expected = f'A line of its own below `# [tool.uv]`: `# {EXCLUDE_NEWER} = "YYYY-MM-DDT00:00:00Z"`'
            raise NotebookError(where, f"{what} cannot be changed", expected)
        change = _located(project, notebook, cell, changed)
        line = change.line + content.count("\n", 0, date.start()) + 1
        changes.append(replace(change, said=f"{project.relative(change.path)}:{line}: {before} -> {after}"))
    return _once(changes), sum(has_undated_packages(cell.code, cell.deps) for _, cell in cells)


def find_harness_changes(project: Project) -> list[HeaderChange]:
    """Return the headers in which this package does not come from where ``[tool.kbt] harness`` says.

    A header that cannot be changed line by line is a ``NotebookError``.
    """
    survey, _ = survey_targets(project, [], strict=True)
    notebooks = survey.notebooks.values()
    cells = ((notebook, cell) for notebook in notebooks for cell in notebook.active_cells)
    return _once(_harness_change(project, notebook, cell) for notebook, cell in cells)


def harness_advice(project: Project, survey: Survey) -> list[str]:
    """Return a line for each notebook in which this package comes from elsewhere than the project says."""
    advice = []
    for notebook in survey.notebooks.values():
        for cell in notebook.active_cells:
            try:
                change = _harness_change(project, notebook, cell)
            except NotebookError as error:
                advice.append(str(error))
                break
            if change:
                advice.append(
                    f"{notebook.name}:{cell.file_line}: cell {cell.id!r} does not take this package from "
                    f"{project.harness.setting()}, as the project does. `kbt upgrade --harness` changes it."
                )
                break
    return advice


def apply_changes(changes: Iterable[HeaderChange]) -> None:
    """Write the new lines; every other byte of the files is kept."""
    for change in sorted(changes, key=lambda change: change.line, reverse=True):
        lines = change.path.read_bytes().split(b"\n")
        end = b"\r" if lines[change.line].endswith(b"\r") else b""
        after = [line.encode() + end for line in change.after.splitlines()]
        lines[change.line : change.line + change.before.count("\n")] = after
        write_atomically(change.path, b"\n".join(lines))


def with_harness(project: Project, path: Path, text: str) -> str:
    """Return the text of a notebook for ``path`` whose first header has this package as the project says."""
    content = split_header(text)[1]
    changed = _with_harness(project, path, content)
    if changed is None:
        raise _not_changeable(project.relative(path), "its cell")
    return text.replace(content, changed, 1)


def write_setting(project: Project, harness: own.Harness) -> None:
    """Set ``[tool.kbt] harness`` in the project's ``pyproject.toml``, where every other byte is kept."""
    path = project.root / "pyproject.toml"
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        text = ""
    expected, table = tomllib.loads(text), _KBT.search(text)
    setting, changed = f"harness = {harness.setting()}", ""
    if table:
        expected["tool"]["kbt"]["harness"] = tomllib.loads(setting)["harness"]
        start, end = table.span("body")
        line_end = "\r\n" if text[:start].endswith("\r\n") else "\n"
        changed = text[:start] + setting + line_end + _SETTING.sub("", text[start:end]) + text[end:]
    try:
        same = table is not None and tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ProjectError(
            str(path), f"`{setting}` cannot be added", "A table [tool.kbt] on lines of its own"
        )
    write_atomically(path, changed.encode())


def _harness_change(project: Project, notebook: Notebook, cell: Cell) -> HeaderChange | None:
    content = split_header(cell.code)[1]
    try:
        changed = _with_harness(project, notebook.path, content)
    except (ValueError, RecursionError):
        return None  # an error of the notebook
    if changed == content:
        return None
    if changed is None:
        raise _not_changeable(f"{notebook.name}:{cell.file_line}", f"cell {cell.id!r}")
    return _located(project, notebook, cell, changed)


def _with_harness(project: Project, path: Path, content: str) -> str | None:
    folder = path.parent / STATE_FOLDER / "cells"
    source = project.harness.header_source(project.root, folder)
    return own.with_harness(content, source, project.harness.requirement)


def _located(project: Project, notebook: Notebook, cell: Cell, after: str) -> HeaderChange:
    """Return the change of a cell's header to this content, in the file that holds the cell's code."""
    path, first = notebook.path, cell.file_line
    if cell.script is not None:
        path, first = Path(os.path.normpath(notebook.path.parent / cell.script)), 0
    before = split_header(cell.code)[1]
    line = first + cell.code.count("\n", 0, cell.code.index(before))
    lines = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")[line : line + before.count("\n")]
    if b"\n".join([*lines, b""]) != before.encode():  # a fence that is indented
        raise _not_changeable(f"{notebook.name}:{cell.file_line}", f"cell {cell.id!r}")
    return HeaderChange(path, line, before, after, f"{project.relative(path)}:{first or 1}")


def _not_changeable(where: str, cell: str) -> NotebookError:
    what = f"where {cell} gets this package from cannot be changed"
    expected = (
        "A fence without indentation, `dependencies`, and below it `[tool.uv.sources]`, on lines of their own"
    )
    return NotebookError(where, what, expected)


def _once(changes: Iterable[HeaderChange | None]) -> list[HeaderChange]:
    """Return each change once: notebooks may share a script."""
    return list(dict.fromkeys(change for change in changes if change))
