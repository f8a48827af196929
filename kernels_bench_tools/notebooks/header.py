"""The PEP 723 header of a script, which declares its packages."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_bench_tools.text.foreign import parse_toml
from kernels_bench_tools.text.words import did_you_mean, words

if TYPE_CHECKING:
    from packaging.requirements import Requirement

EXCLUDE_NEWER = "exclude-newer"
"""The setting of uv that pins a resolution by date."""

_KEYS = ("requires-python", "dependencies", "tool")
_UV_KEYS = words("""
    sources exclude-newer exclude-newer-package index index-url extra-index-url index-strategy find-links
    no-index prerelease resolution fork-strategy python-preference torch-backend constraint-dependencies
    override-dependencies build-constraint-dependencies required-version no-build no-build-package no-binary
    no-binary-package no-build-isolation no-sources no-build-isolation-package config-settings link-mode
    compile-bytecode dependency-metadata environments required-environments keyring-provider reinstall upgrade
    pip package
""")
"""Settings of uv that scripts use; another one is reported only if it is similar to one of these."""
_FIRST = "# /// script"
_MARK = re.compile(r"(?m)^[ \t]*#[ \t]*/{2,4}[ \t]*(?P<word>[a-z]+)[ \t]*$", re.IGNORECASE)
"""A line that is meant to be the first of a header."""
_LAST = re.compile(r"(?m)^[ \t]*#[ \t]*///[ \t]*$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].+)?|\d+ ?[a-z]+.*|P\w+", re.IGNORECASE)
"""What uv reads as a date, or as the time before now."""
_ORIGINS = ("path", "git", "url", "index", "workspace")
_PLACE = re.compile(r"at line (\d+), column (\d+)")
_BLOCK = re.compile(r"(?m)^# /// script[ \t]*$\n(?P<content>(?:^#(?:| .*)$\n)+?)^# ///[ \t]*$")


PACKAGE = "kernels-bench-tools"
_MOST_VALUES = 1000
OLDEST_PYTHON = (3, 10)
OLD_PYTHON = "Cells need Python 3.10 or later"
_LATER = [f"3.{minor}.{patch}" for minor in range(OLDEST_PYTHON[1], 30) for patch in range(40)]


def read_header(code: str) -> dict[str, Any] | None:
    """Return the metadata in a script's header, or None; a ``ValueError`` has a message of one line."""
    blocks = list(_BLOCK.finditer(code + "\n"))
    if not blocks:
        return None
    if len(blocks) > 1:
        raise ValueError("there are two `# /// script` headers; only one is allowed")
    try:
        return copy.deepcopy(parse_content(blocks[0]["content"]))
    except ValueError as error:
        # Lines are those of the code, and columns after the `# ` of each line.
        first = code.count("\n", 0, blocks[0].start("content"))
        said = _PLACE.sub(lambda at: f"at line {int(at[1]) + first}, column {int(at[2]) + 2}", str(error))
        raise ValueError(f"its header is not valid TOML: {said}") from error


@lru_cache(256)
def parse_content(content: str) -> dict[str, Any]:
    """Return the table in the content of a header, which must not be changed; a ``ValueError`` if it is not TOML."""
    return parse_toml("\n".join(line[2:] for line in content.splitlines()), _MOST_VALUES)


def split_header(code: str) -> tuple[str, str]:
    """Return a script without its header, and the content of the header; empty if there is none."""
    block = _BLOCK.search(code + "\n")
    if block is None:
        return code, ""
    return code[: block.start()] + code[block.end() + 1 :], block["content"]


_Problem = tuple[int, str, str] | tuple[int, str, str, str]
"""A line, counted from 1, or 0 for none; what is wrong; what was expected; and a remedy, if any."""


def header_problems(code: str, deps: Sequence[str], folder: Path) -> Iterator[_Problem]:
    """Yield what uv would not understand in a script's header, or silently leave out; and in a cell's ``deps=``.

    Relative sources count from ``folder``.
    """
    wrong, requirement = "{!r} is not a requirement", "Such as torch==2.8.0, or name @ URL"
    yield from ((0, wrong.format(text), requirement) for text in deps if not parse_requirement(text))
    block = _BLOCK.search(code + "\n")
    if block is None:
        yield from _unread_header(code)
        return
    try:
        header = read_header(code) or {}
    except ValueError:  # told where the cell is read
        return
    uv, dependencies = uv_settings(header), header.get("dependencies")
    first = code.count("\n", 0, block.start("content"))
    lines = block["content"].splitlines()

    def number(key: str) -> int:
        starts = (at for at, line in enumerate(lines, 1) if line[2:].lstrip(" \"'").startswith(key))
        return first + next(starts, 0)

    for key in header:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS, f"Known keys are {', '.join(_KEYS)}")
            yield number(key), f"unknown key {key!r} in the header", "", hint
    for key in uv:
        if key not in _UV_KEYS and (hint := did_you_mean(key, _UV_KEYS)):  # uv may have others
            yield number(key), f"unknown key {key!r} in [tool.uv] of the header", "", hint
    date, python = uv.get(EXCLUDE_NEWER, "1 day"), header.get("requires-python", "")
    if not isinstance(date, str) or not _DATE.fullmatch(date):
        yield number(EXCLUDE_NEWER), f"{EXCLUDE_NEWER} is {date!r}", 'A date such as "2026-11-20T00:00:00Z"'
    if not isinstance(python, str) or not parse_requirement(f"python {python}"):
        yield number("requires-python"), f"requires-python is {python!r}", 'Versions such as ">=3.11"'
    elif needs_old_python(python):
        yield number("requires-python"), f"requires-python is {python!r}", OLD_PYTHON
    for name, source in _sources(header).items():
        for table in source if isinstance(source, list) else [source]:
            if not isinstance(table, dict) or not table.keys() & {*_ORIGINS}:
                expected = f"A table with one of {', '.join(_ORIGINS)}"
                yield number(name), f"the source of {name} is {table!r}", expected
    for name, path in path_sources(header).items():
        if not Path(os.path.normpath(folder / path)).exists():
            what = f"the source of {name} is {path!r}, which does not exist"
            remedy = "`kbt upgrade --harness SOURCE` changes all notebooks" if name == PACKAGE else ""
            yield number(name), what, f"An absolute path, or one relative to {folder}", remedy
    if not isinstance(dependencies, list | None) or not all(isinstance(it, str) for it in dependencies or ()):
        expected = 'A list of strings such as ["numpy", "torch==2.8.0"]'
        yield number("dependencies"), f"dependencies is {dependencies!r}", expected
        return
    for text in dependencies or ():
        if not parse_requirement(text):
            at = next((at for at, line in enumerate(lines, 1) if text in line), 0)
            yield first + at, wrong.format(text), requirement


def _unread_header(code: str) -> Iterator[_Problem]:
    """Yield the line of a script without a header that is meant to begin or end one."""
    meant = (
        mark
        for mark in _MARK.finditer(code)
        if mark["word"].lower() == "script" or did_you_mean(mark["word"].lower(), ["script"])
    )
    begin = next(meant, None)
    if mark := begin or _LAST.search(code):
        line = mark[0].strip()
        what = "does not begin a header" if begin else "ends a header that does not begin"
        what = "begins a header that is not closed" if line == _FIRST else what
        expected = f"`{_FIRST}`, lines that begin with `# `, and `# ///`"
        at = code.count("\n", 0, mark.start()) + 1
        yield at, f"`{line}` {what}, so no packages are installed", expected


@lru_cache(256)
def needs_old_python(requires: object) -> bool:
    """Return whether ``requires-python`` excludes every Python that cells run on; False for one that is no condition."""
    python = parse_requirement(f"python {requires}") if isinstance(requires, str) else None
    return python is not None and next(iter(python.specifier.filter(_LATER)), None) is None


def parse_requirement(text: str) -> Requirement | None:
    """Return a requirement such as ``torch==2.8.0``; None if the text is none."""
    from packaging.requirements import InvalidRequirement, Requirement  # a build that runs nothing needs none

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def uv_settings(header: dict[str, Any] | None) -> dict[str, Any]:
    """Return ``[tool.uv]`` of a header; empty if it has none."""
    tool = (header or {}).get("tool")
    settings = tool.get("uv") if isinstance(tool, dict) else None
    return settings if isinstance(settings, dict) else {}


def path_sources(header: dict[str, Any] | None) -> dict[str, str]:
    """Return the packages that a header takes from the local disk: name to path as written there."""
    return {
        name: source["path"]
        for name, source in _sources(header).items()
        if isinstance(source, dict) and isinstance(source.get("path"), str)
    }


def _sources(header: dict[str, Any] | None) -> dict[str, Any]:
    sources = uv_settings(header).get("sources")
    return sources if isinstance(sources, dict) else {}


def has_undated_packages(code: str, deps: list[str]) -> bool:
    """Return whether a script, or a cell's ``deps=``, installs packages without ``exclude-newer``."""
    try:
        header = read_header(code)
    except ValueError:
        return False
    if header is None:
        return bool(deps)
    return bool(header.get("dependencies")) and EXCLUDE_NEWER not in uv_settings(header)


def with_header(code: str, dependencies: list[str]) -> str:
    """Return the script with a header for ``dependencies``, unless it has one already.

    The header is put last, so that line numbers in tracebacks are those of the cell.
    """
    if _BLOCK.search(code + "\n"):
        return code
    # A JSON string is a TOML string.
    items = "".join(f"#     {json.dumps(dependency)},\n" for dependency in dependencies)
    listed = f"# dependencies = [\n{items}# ]" if items else "# dependencies = []"
    return f"{code.rstrip()}\n\n# /// script\n{listed}\n# ///\n"


def with_version(text: str, requirement: str) -> str:
    """Return a script or a notebook in whose headers exactly this version is installed, whatever other packages require."""

    def changed(block: re.Match[str]) -> str:
        content, name = block["content"], json.dumps(requirement)
        content, listed = re.subn(r"(?m)^# dependencies\s*=\s*\[", rf"\g<0>{name}, ", content, count=1)
        content = content if listed else f"# dependencies = [{name}]\n{content}"
        line = f"# override-dependencies = [{name}]\n"
        content, listed = re.subn(r"(?m)^# \[tool\.uv\][ \t]*\n", rf"\g<0>{line}", content, count=1)
        return f"{_FIRST}\n{content if listed else f'{content}# [tool.uv]{chr(10)}{line}'}# ///"

    return _BLOCK.sub(changed, text)
