"""Where cells get this package from: ``[tool.kbt] harness``, and what a cell's header says of it.

A header stays complete, so that uvnote and ``uv run`` need no project: the setting is one place to change them all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.header import PACKAGE, parse_requirement
from kernels_bench_tools.text.hiding import has_credentials

if TYPE_CHECKING:
    from packaging.requirements import Requirement

EXPECTED = f'"{PACKAGE}==0.1.0", {{ path = "." }} or {{ git = "https://…", rev = "…" }}'

NAME = r"kernels[-_.]bench[-_.]tools"
_ORIGINS = ("path", "git", "url")
_KEYS = (*_ORIGINS, "rev", "tag", "branch", "subdirectory", "editable")
_ARCHIVES = (".whl", ".zip", ".gz")


@dataclass(frozen=True)
class Harness:
    """What the headers of cells name for this package."""

    requirement: str = PACKAGE
    """A requirement as in ``dependencies``; a date pins its version, as that of every package."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """A table as in ``[tool.uv.sources]``, its path relative to the project's root; empty for a package index."""

    def setting(self) -> str:
        return inline_table(self.source) if self.source else json.dumps(self.requirement, ensure_ascii=False)

    def header_source(self, root: Path, folder: Path) -> dict[str, Any]:
        """Return the entry of ``[tool.uv.sources]`` for a script in ``folder``; empty for a package index."""
        if "path" not in self.source:
            return dict(self.source)
        path = os.path.relpath(os.path.normpath(root / self.source["path"]), folder)
        if PurePosixPath(self.source["path"]).is_absolute():
            path = self.source["path"]
        editable = {} if path.endswith(_ARCHIVES) else {"editable": True}
        return {**editable, **self.source, "path": Path(path).as_posix()}


def read_harness(where: str, value: object) -> Harness:
    """Return the harness that ``[tool.kbt] harness`` names; another value is a ``ProjectError``."""
    _refuse_credentials(where, str(value))
    if isinstance(value, str) and own_requirement(value):
        return Harness(value.strip())
    if isinstance(value, dict) and not value.keys() - {*_KEYS} and len(value.keys() & {*_ORIGINS}) == 1:
        kinds = {key: bool if key == "editable" else str for key in value}
        if all(isinstance(given, kinds[key]) and given != "" for key, given in value.items()):
            return Harness(source=value)
    raise ProjectError(where, "harness is invalid", EXPECTED)


def parse_harness(text: str, root: Path) -> Harness:
    """Return the harness that a user names: a requirement, the URL of a git repository or wheel, or a path."""
    _refuse_credentials("--harness", text)
    where = f"--harness {text}"
    if own_requirement(text):
        return Harness(text)
    if "://" in text:
        url, at, revision = text.removeprefix("git+").rpartition("@")
        if not at or "/" in revision or "://" not in url:  # the @ of a user's name, or none
            url, revision = text.removeprefix("git+"), ""
        if url.endswith(_ARCHIVES):
            return Harness(source={"url": url})
        return Harness(source={"git": url, "rev": revision} if revision else {"git": url})
    path = Path(text).expanduser()
    package = path.resolve()
    if not (package / "pyproject.toml").is_file() and not (package.is_file() and text.endswith(_ARCHIVES)):
        raise ProjectError(
            where, "there is no such package", f"A requirement such as {PACKAGE}==0.1.0, a path or a URL"
        )
    if path.is_absolute() and not package.is_relative_to(root):
        return Harness(source={"path": package.as_posix()})
    return Harness(source={"path": Path(os.path.relpath(package, root)).as_posix()})


def _refuse_credentials(where: str, text: str) -> None:
    if has_credentials(text):
        what = "the URL has a user name, password or token, which every notebook would show"
        raise ProjectError(where, what, "A URL without credentials", "Use a Git credential helper")


def own_requirement(text: str) -> Requirement | None:
    """Return a requirement of this package; None if the text is another one, or none."""
    requirement = parse_requirement(text)
    return requirement if requirement and re.fullmatch(NAME, requirement.name, re.IGNORECASE) else None


def inline_table(source: Mapping[str, Any]) -> str:
    # A JSON string is a TOML string.
    words = (f"{key} = {json.dumps(source[key], ensure_ascii=False)}" for key in _KEYS if key in source)
    return f"{{ {', '.join(words)} }}"
