"""Where cells get this package from: ``[tool.kbt] harness``, and the lines for it in a cell's header.

A header stays complete, so that uvnote and ``uv run`` need no project: the setting is one place to change them all.
"""

from __future__ import annotations

import copy
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.header import PACKAGE, parse_requirement, uv_settings

if TYPE_CHECKING:
    from packaging.requirements import Requirement

EXPECTED = f'"{PACKAGE}==0.1.0", {{ path = "." }} or {{ git = "https://…", rev = "…" }}'

_NAME = r"kernels[-_.]bench[-_.]tools"
_STRING = re.compile(r"(?P<quote>[\"'])(?P<text>(?:(?!(?P=quote)).)*)(?P=quote)(?!\s*=)")
_ENTRY = re.compile(rf"#\s*([\"']?){_NAME}\1\s*=", re.IGNORECASE)
_TABLE = re.compile(r"#\s*\[")
_SOURCES = re.compile(r"#\s*\[\s*tool\s*\.\s*uv\s*\.\s*sources\s*\]")
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
        """Return the value of ``[tool.kbt] harness`` as TOML."""
        return _inline(self.source) if self.source else json.dumps(self.requirement, ensure_ascii=False)

    def pip_requirement(self) -> str:
        """Return what ``pip install`` in the root takes for the same package."""
        if "path" in self.source:
            path = PurePosixPath(self.source["path"])
            return str(path) if path.is_absolute() else f"./{path}"
        if "git" in self.source:
            revision = next((self.source[key] for key in ("rev", "tag", "branch") if key in self.source), "")
            folder = self.source.get("subdirectory", "")
            return (
                f"{PACKAGE} @ git+{self.source['git']}"
                + (f"@{revision}" if revision else "")
                + (f"#subdirectory={folder}" if folder else "")
            )
        return f"{PACKAGE} @ {self.source['url']}" if self.source else self.requirement

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
    if isinstance(value, str) and _requirement(value):
        return Harness(value.strip())
    if isinstance(value, dict) and not value.keys() - {*_KEYS} and len(value.keys() & {*_ORIGINS}) == 1:
        kinds = {key: bool if key == "editable" else str for key in value}
        if all(isinstance(one, kinds[key]) and one != "" for key, one in value.items()):
            return Harness(source=value)
    raise ProjectError(where, "harness is wrong", EXPECTED)


def parse_harness(text: str, root: Path) -> Harness:
    """Return the harness that a user names: a requirement, the URL of a git repository or wheel, or a path."""
    where = f"--harness {text}"
    if _requirement(text):
        return Harness(text)
    if "://" in text:
        url, at, revision = text.removeprefix("git+").rpartition("@")
        if not at or "/" in revision or "://" not in url:  # the @ of a user's name, or none
            url, revision = text.removeprefix("git+"), ""
        if url.endswith(_ARCHIVES):
            return Harness(source={"url": url})
        return Harness(source={"git": url, "rev": revision} if revision else {"git": url})
    path = Path(text).expanduser()
    found = path.resolve()
    if not (found / "pyproject.toml").is_file() and not (found.is_file() and text.endswith(_ARCHIVES)):
        raise ProjectError(
            where, "there is no such package", f"A requirement such as {PACKAGE}==0.1.0, a path or a URL"
        )
    if path.is_absolute() and not found.is_relative_to(root):
        return Harness(source={"path": found.as_posix()})
    return Harness(source={"path": Path(os.path.relpath(found, root)).as_posix()})


def harness_lines(lines: Sequence[str], source: Mapping[str, Any], requirement: str) -> list[str] | None:
    """Return the lines of a header, without its first and last, in which this package comes from ``source``.

    Lines that say so already, and the header of a cell that does not name this package, are returned as they are. None
    if they cannot be changed one by one, such as those of ``sources = { … }``.
    """
    header = _parse(lines)
    listed = header.get("dependencies")
    listed = listed if isinstance(listed, list) else []
    found = {one: ours for one in listed if isinstance(one, str) and (ours := _requirement(one))}
    if len(found) != 1:
        return list(lines)
    if not isinstance(uv_settings(header).get("sources", {}), dict):
        return None
    [(before, ours)] = found.items()
    after = _with_extras(requirement, ours.extras)
    expected = copy.deepcopy(header)
    expected["dependencies"][listed.index(before)] = after
    sources = expected.setdefault("tool", {}).setdefault("uv", {}).setdefault("sources", {})
    for name in [name for name in sources if re.fullmatch(_NAME, name, re.IGNORECASE)]:
        del sources[name]
    if source:
        sources[PACKAGE] = dict(source)
    if _pruned(expected) == _pruned(header):
        return list(lines)
    changed = [_with_dependency(line, before, after) for line in lines]
    if uv_settings(header).get("sources", {}).get(PACKAGE) != source:
        changed = _with_source(changed, source)
    try:
        return changed if _pruned(_parse(changed)) == _pruned(expected) else None
    except tomllib.TOMLDecodeError:
        return None


def _requirement(text: str) -> Requirement | None:
    """Return a requirement of this package; None if the text is another one, or none."""
    found = parse_requirement(text)
    return found if found and re.fullmatch(_NAME, found.name, re.IGNORECASE) else None


def _with_extras(requirement: str, extras: set[str]) -> str:
    """Return the requirement with these extras beside its own."""
    found = _requirement(requirement)
    if found is None or extras <= found.extras:
        return requirement
    found.extras |= extras
    return str(found)


def _with_dependency(line: str, before: str, after: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        quote = match["quote"] if match["quote"] not in after else "'"
        return f"{quote}{after}{quote}" if match["text"] == before else match[0]

    return _STRING.sub(replaced, line) if before != after else line


def _with_source(lines: list[str], source: Mapping[str, Any]) -> list[str]:
    """Return the lines with this entry below ``[tool.uv.sources]``, or without one if it is empty."""
    entry = [f"# {PACKAGE} = {_inline(source)}"] if source else []
    start = next((number for number, line in enumerate(lines) if _SOURCES.match(line)), None)
    if start is None:
        return [*lines, "#", "# [tool.uv.sources]", *entry] if entry else lines
    inside = range(
        start + 1, next((n for n in range(start + 1, len(lines)) if _TABLE.match(lines[n])), len(lines))
    )
    old = next((number for number in inside if _ENTRY.match(lines[number])), None)
    if old is not None:
        others = any(lines[number].strip("# \t") for number in inside if number != old)
        if entry or others:
            return [*lines[:old], *entry, *lines[old + 1 :]]
        while start and not lines[start - 1].strip("# \t"):
            start -= 1
        return [*lines[:start], *lines[old + 1 :]]
    return [*lines[: inside.start], *entry, *lines[inside.start :]]


def _parse(lines: Sequence[str]) -> dict[str, Any]:
    return tomllib.loads("\n".join(line[2:] for line in lines))


def _pruned(table: Any) -> Any:
    """Return a table without empty ones."""
    if not isinstance(table, dict):
        return table
    inner = {key: _pruned(value) for key, value in table.items()}
    return {key: value for key, value in inner.items() if value != {}}


def _inline(source: Mapping[str, Any]) -> str:
    # A JSON string is a TOML string.
    words = (f"{key} = {json.dumps(source[key], ensure_ascii=False)}" for key in _KEYS if key in source)
    return f"{{ {', '.join(words)} }}"
