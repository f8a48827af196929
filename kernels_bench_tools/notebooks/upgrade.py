"""``kbt upgrade``: change in the headers of cells the date of their packages, or where this one comes from.

A line changes by a regular expression, and the header is read again: nothing else in it may have changed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import NotebookError, ProjectError
from kernels_bench_tools.file_io import read_file, write_atomically
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.harness import NAME, Harness, inline_table, own_requirement
from kernels_bench_tools.notebooks.header import (
    EXCLUDE_NEWER,
    PACKAGE,
    has_undated_packages,
    parse_content,
    read_header,
    split_header,
    uv_settings,
)
from kernels_bench_tools.notebooks.project import STATE_FOLDER, Project
from kernels_bench_tools.notebooks.survey import Survey, select_notebooks, survey_targets

_DATE = re.compile(rf"(?m)^(# *(?:tool\.uv\.)?{EXCLUDE_NEWER} *= *)([\"'])[^\"'\n]*\2")
_ENTRY = re.compile(rf"(?m)^# *[\"']?{NAME}[\"']? *=.*\n", re.IGNORECASE)
_SOURCES = "# [tool.uv.sources]\n"
_NO_SOURCES = re.compile(rf"(# *\n)*{re.escape(_SOURCES)}(?=(# *\n)*(# *\[|\Z))")
_KBT = re.compile(r"(?m)^(\[ *tool *\. *kbt *\].*\n)((?:^(?!\[).*\n?)*)")
_SETTING = re.compile(r"(?m)^ *harness *=.*\n?")


@dataclass(frozen=True)
class HeaderChange:
    path: Path
    before: str
    after: str
    said: str
    """File within the project, line of the cell and, of a date, what changes."""


def today() -> str:
    """Return the beginning of this day as in headers."""
    return f"{datetime.now(UTC):%Y-%m-%d}T00:00:00Z"


def parse_date(text: str) -> str:
    """Return the beginning of a day as in headers; a ``ProjectError`` if the text is no date, or a later one than today's.

    >>> parse_date("2026-11-20")
    '2026-11-20T00:00:00Z'
    """
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ProjectError(f"--to {text}", "is not a date", "A date such as 2026-11-20") from None
    if day > datetime.now(UTC):
        raise ProjectError(f"--to {text}", "is in the future", "A date whose packages are all published")
    return f"{day:%Y-%m-%d}T00:00:00Z"


def with_date(text: str, date: str) -> str:
    """Return a text in whose headers packages are those of a date."""
    return _DATE.sub(rf"\g<1>\g<2>{date}\g<2>", text)


def find_changes(project: Project, targets: Sequence[str], after: str) -> tuple[list[HeaderChange], int]:
    """Return the headers of the selected notebooks, or of all, whose date is not ``after``.

    The number counts cells that install packages without a date.
    """
    survey, _ = survey_targets(project, targets, strict=True)
    notebooks = [survey.notebooks[name] for name in select_notebooks(project, survey, targets)]
    cells = [(notebook, cell) for notebook in notebooks for cell in notebook.active_cells]
    dated = []
    for notebook, cell in cells:
        header = read_header(cell.code) or {}
        before, content = uv_settings(header).get(EXCLUDE_NEWER), split_header(cell.code)[1]
        if before not in (None, after):
            header["tool"]["uv"][EXCLUDE_NEWER] = after
            changed = _verified(with_date(content, after), header)
            dated.append((notebook, cell, changed, f": {before} -> {after}"))
    return _changes(project, dated), sum(has_undated_packages(cell.code, cell.deps) for _, cell in cells)


def find_harness_changes(project: Project) -> list[HeaderChange]:
    """Return the headers in which this package does not come from where ``[tool.kbt] harness`` says."""
    survey, _ = survey_targets(project, [], strict=True)
    headers = (
        (notebook, cell, _own_header(project, notebook.path, cell.code), "")
        for notebook in survey.notebooks.values()
        for cell in notebook.active_cells
    )
    return _changes(project, headers)


def harness_advice(project: Project, survey: Survey) -> list[str]:
    """Return a line for each notebook in which this package comes from elsewhere than the project says."""
    advice = []
    for notebook in survey.notebooks.values():
        headers = ((cell, _own_header(project, notebook.path, cell.code)) for cell in notebook.active_cells)
        if other := next((cell for cell, after in headers if after != split_header(cell.code)[1]), None):
            advice.append(
                f"{notebook.name}:{other.file_line}: cell {other.id!r} does not take this package from "
                f"{project.harness.setting()}, as the project does. `kbt upgrade --harness` changes it."
            )
    return advice


def apply_changes(changes: Iterable[HeaderChange]) -> None:
    """Write the new headers; every other byte of the files is kept. Equal headers in a file change together."""
    for change in changes:
        data = read_file(change.path)
        end = b"\r\n" if b"\r\n" in data else b"\n"
        # With the last line: one header may begin like another.
        before, after = (
            f"{content}# ///".encode().replace(b"\n", end) for content in (change.before, change.after)
        )
        write_atomically(change.path, data.replace(before, after))


def with_harness(project: Project, path: Path, text: str) -> str:
    """Return the text of a notebook for ``path`` whose first header has this package as the project says."""
    content = split_header(text)[1]
    return text.replace(content, _own_header(project, path, text) or content, 1)


def write_setting(project: Project, harness: Harness) -> None:
    """Set ``[tool.kbt] harness`` in the project's ``pyproject.toml``, where every other byte is kept."""
    path, setting = project.root / "pyproject.toml", f"harness = {harness.setting()}"
    text = read_file(path).decode() if path.is_file() else ""
    expected = tomllib.loads(text)
    expected.setdefault("tool", {}).setdefault("kbt", {})["harness"] = tomllib.loads(setting)["harness"]
    end = "\r\n" if "\r\n" in text else "\n"
    changed = _KBT.sub(lambda table: f"{table[1]}{setting}{end}{_SETTING.sub('', table[2])}", text)
    if tomllib.loads(changed) != expected:
        what = f"`{setting}` cannot be added"
        raise ProjectError(str(path), what, "A table [tool.kbt] on lines of its own")
    write_atomically(path, changed.encode())


def _own_header(project: Project, path: Path, code: str) -> str | None:
    """Return the content of a header as the project says where this package comes from; None if a line cannot be changed.

    A header that says so, does not name this package or is malformed is returned as it is.
    """
    content = split_header(code)[1]
    try:
        header = read_header(code) or {}
    except ValueError:
        return content
    listed, sources = header.get("dependencies"), uv_settings(header).get("sources", {})
    named = [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []
    requirements = {text: ours for text in named if (ours := own_requirement(text))}
    if len(requirements) != 1 or not isinstance(sources, dict):
        return content
    [(before, ours)] = requirements.items()
    after, wanted = project.harness.requirement, own_requirement(project.harness.requirement)
    if wanted and ours.extras - wanted.extras:
        wanted.extras |= ours.extras
        after = str(wanted)
    source = project.harness.header_source(project.root, path.parent / STATE_FOLDER / "cells")
    header["dependencies"][named.index(before)] = after
    others = {name: table for name, table in sources.items() if not re.fullmatch(NAME, name, re.IGNORECASE)}
    settings = header.setdefault("tool", {}).setdefault("uv", {})
    settings["sources"] = others | ({PACKAGE: source} if source else {})
    if _verified(content, header):
        return content
    for quote in "\"'":
        content = content.replace(f"{quote}{before}{quote}", f"{quote}{after}{quote}")
    content = _ENTRY.sub("", content)
    if source:
        content = content if _SOURCES in content else f"{content}#\n{_SOURCES}"
        content = content.replace(_SOURCES, f"{_SOURCES}# {PACKAGE} = {inline_table(source)}\n")
    else:
        content = _NO_SOURCES.sub("", content)
    return _verified(content, header)


def _verified(content: str, expected: dict[str, Any]) -> str | None:
    """Return the content of a header if it says what was expected."""

    def pruned(table: Any) -> Any:
        inner = {key: pruned(value) for key, value in table.items()} if isinstance(table, dict) else None
        return table if inner is None else {key: value for key, value in inner.items() if value != {}}

    try:
        return content if pruned(parse_content(content)) == pruned(expected) else None
    except ValueError:
        return None


def _changes(
    project: Project, headers: Iterable[tuple[Notebook, Cell, str | None, str]]
) -> list[HeaderChange]:
    """Return what changes in the files that hold the code of cells, given what their headers have to be and a remark.

    Equal headers in a file are one change: notebooks may share a script. One that cannot be changed is a ``NotebookError``.
    """
    changes: dict[tuple[Path, str], HeaderChange] = {}
    for notebook, cell, after, remark in headers:
        path, line, before = notebook.path, cell.file_line, split_header(cell.code)[1]
        if cell.script is not None:
            path, line = Path(os.path.normpath(notebook.path.parent / cell.script)), 1
        if after == before:
            continue
        if after is None or before.encode() not in read_file(path).replace(b"\r\n", b"\n"):
            what = f"the header of cell {cell.id!r} cannot be changed"
            lines = f"dependencies, {EXCLUDE_NEWER} and sources on lines of their own"
            raise NotebookError(f"{notebook.name}:{line}", what, f"A fence without indentation; {lines}")
        said = f"{project.relative(path)}:{line}{remark}"
        changes.setdefault((path, before), HeaderChange(path, before, after, said))
    return [*changes.values()]
