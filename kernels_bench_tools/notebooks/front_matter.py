"""The YAML at the top of a notebook, read strictly: what uvnote ignores in silence is an error here."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml
from uvnote.parser import parse_frontmatter

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.schema.build import FrontMatter
from kernels_bench_tools.text import did_you_mean

DEVICE_KINDS = ("cuda", "rocm", "xpu", "mps", "cpu")

_TYPES: dict[str, Any] = {
    "title": str,
    "author": str,
    "description": str,
    "family": str,
    "baseline": bool,
    "requires": list[str],
    "links": dict[str, str],
    "platforms": list[str] | str,
    "platform": list[str] | str,
    "theme": str,
    "ui_theme": str,
    "widgets": bool,
    "show_widgets": bool,
    "syntax_theme": str,
    "show_line_numbers": bool,
    "collapse_code": bool,
    "custom_css": str,
    "code_font_size": int | float | str,
    "on_github": str,
    "on_huggingface": str,
}
_SPELLED = {
    str: "Text",
    bool: "true or false",
    list[str]: "A list of words",
    dict[str, str]: "Names with texts",
}


@dataclass
class FrontMatterBlock:
    """A notebook's front matter, and where its body begins."""

    front: FrontMatter
    body: int
    """Number of lines before the body."""
    problems: list[NotebookError] = field(default_factory=list)


def read_front_matter(where: str, lines: Sequence[str]) -> FrontMatterBlock:
    """Return what the lines before the second ``---`` say, with everything that is wrong with it.

    Args:
        where: How messages name the notebook.
        lines: The whole notebook.
    """
    empty = FrontMatterBlock(FrontMatter(), 0)
    if not lines or lines[0].strip() != "---":
        return empty
    end = next((number for number, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        error = NotebookError(f"{where}:1", "the front matter is not closed", "A line `---` that ends it")
        return FrontMatterBlock(FrontMatter(), 0, [error])
    block = lines[: end + 1]
    problems, data = _load(where, block)
    if not problems:
        problems = [*_check_keys(where, block, data)]
    wrong = {key for key, value in data.items() if key not in _TYPES or not _fits(value, _TYPES[key])}
    right = {key: value for key, value in data.items() if key not in wrong}
    # uvnote's reader fails on some of what is wrong; it then sees an empty block.
    uvnotes = {} if problems else _uvnotes(block, data)
    return FrontMatterBlock(_front_matter(right, uvnotes), end + 1, problems)


def _uvnotes(block: Sequence[str], data: dict[str, Any]) -> dict[str, Any]:
    """Return uvnote's reading of its keys.

    It differs from the YAML reader's where uvnote sees more lines than there are: at a form feed, say. Where it
    cannot differ it is not asked, since it takes as long as reading the whole rest of the notebook.
    """
    if all(len(line.splitlines()) <= 1 for line in block):
        return data
    config, _ = parse_frontmatter("\n".join(block))
    return {key: getattr(config, key) for key in _UVNOTES}


def _load(where: str, block: Sequence[str]) -> tuple[list[NotebookError], dict[str, Any]]:
    try:
        data = yaml.load("\n".join(block[1:-1]), Loader=_LOADER)  # noqa: S506 - both loaders are safe ones
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 2 if mark else 1
        said = getattr(error, "problem", None) or "it cannot be read"
        what = f"the front matter is not YAML: {said}"
        return [
            NotebookError(f"{where}:{line}", what, "Lines like `title: Triton`", "Quote values with `: `")
        ], {}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # What a tag or a date makes of its text is not checked by the YAML reader: `2026-99-99`.
        what = f"the front matter holds a value that cannot be read ({type(error).__name__})"
        return [NotebookError(f"{where}:1", what, "Lines like `title: Triton`", "Quote the value")], {}
    if data is None:
        return [], {}
    if not isinstance(data, dict):
        what = f"the front matter is a {type(data).__name__}"
        return [NotebookError(f"{where}:2", what, "Lines like `title: Triton`")], {}
    return [], {str(key): value for key, value in data.items()}


_UVNOTES = ("title", "author", "theme", "custom_css", "collapse_code")
"""The keys that are uvnote's and that we use."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _check_keys(where: str, block: Sequence[str], data: dict[str, Any]) -> list[NotebookError]:
    problems = []
    for key, value in data.items():
        at = f"{where}:{_line_of(key, block)}"
        if key not in _TYPES:
            hint = did_you_mean(key, _TYPES, "Known keys are " + ", ".join(sorted(_TYPES)))
            problems.append(NotebookError(at, f"unknown front matter key {key!r}", "", hint))
        elif not _fits(value, _TYPES[key]):
            what = f"{key} is {reprlib.repr(value)}"
            problems.append(NotebookError(at, what, _SPELLED.get(_TYPES[key], "A word or a list")))
    requires = data.get("requires")
    for kind in requires if isinstance(requires, list) else []:
        if isinstance(kind, str) and kind.lower() not in DEVICE_KINDS:
            at = f"{where}:{_line_of('requires', block)}"
            hint = did_you_mean(kind.lower(), DEVICE_KINDS, "Remove it")
            problems.append(
                NotebookError(at, f"requires {kind!r}", f"Device kinds are {', '.join(DEVICE_KINDS)}", hint)
            )
    return problems


def _line_of(key: str, block: Sequence[str]) -> int:
    numbers = (number for number, line in enumerate(block, 1) if line.lstrip("\"'").startswith(key))
    return next(numbers, 1)


def _fits(value: object, kind: Any) -> bool:
    # A key without a value is as good as none.
    try:
        msgspec.convert(value, kind | None)
    except msgspec.ValidationError:
        return False
    return True


def _front_matter(data: dict[str, Any], uvnotes: dict[str, Any]) -> FrontMatter:
    """Return our view: uvnote's reading of its keys, and ours of the others."""
    own = ("description", "family", "baseline", "requires", "links")
    values = {key: data[key] for key in own if data.get(key) is not None}
    values["requires"] = [kind.lower() for kind in values.get("requires", [])]
    for key in _UVNOTES:
        if data.get(key) is not None and key in uvnotes:
            values[key] = uvnotes[key]
    platforms = data["platforms"] if "platforms" in data else data.get("platform")
    if platforms is not None:
        listed = [platforms] if isinstance(platforms, str) else platforms
        values["platforms"] = [platform.lower() for platform in listed]
    return msgspec.convert(values, FrontMatter)
