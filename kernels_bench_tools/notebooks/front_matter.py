"""The YAML front matter of a notebook. Unlike in uvnote, anything unknown or malformed is an error."""

from __future__ import annotations

import os
import platform
import re
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

import msgspec
import yaml

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.text.foreign import check_values
from kernels_bench_tools.text.words import did_you_mean

DEVICE_KINDS = ("cuda", "rocm", "xpu", "mps", "cpu")
EXPECTABLE = tuple(status.value for status in Status if status.failed or status is Status.UNSUPPORTED)
"""The statuses that ``expect`` may name."""

_TYPES: dict[str, Any] = get_type_hints(FrontMatter) | {
    "platforms": list[str] | str,
    "platform": list[str] | str,
    # Of uvnote, without an effect here.
    "ui_theme": str,
    "widgets": bool,
    "show_widgets": bool,
    "syntax_theme": str,
    "show_line_numbers": bool,
    "code_font_size": int | float | str,
    "on_github": str,
    "on_huggingface": str,
}
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEY = re.compile(r"[\"']?([\w-]+)[\"']?\s*:(\s|$)")
_LONGEST = 100_000
_DEEPEST = 20
_MOST_EVENTS = 2000
_LONG_NUMBER = re.compile(r"[-+.]?\d[\w:.+-]{99}")
"""What YAML may read as a number, also of base 60, in a time that is quadratic in its length."""
_EXAMPLE = "Lines like `title: Triton`"
_EXPECTED = {
    str: "Text",
    bool: "true or false",
    list[str]: "A list of words",
    dict[str, str]: "Names with texts",
}


def read_front_matter(
    where: str, lines: Sequence[str], notes: list[tuple[int, str]]
) -> tuple[FrontMatter, int, list[NotebookError]]:
    """Return the front matter of a notebook's ``lines``, the number of lines before its body, and the errors.

    The notebook is called ``where`` in messages. ``notes`` get line and text of what is most likely a mistake: front
    matter that is none, and a key that is there twice.
    """
    if not lines or lines[0].strip() != "---":
        first = next((number for number, line in enumerate(lines) if line.strip() == "---"), 0)
        after = [line.strip() for line in lines[first + 1 :]]
        inside = after[: after.index("---")] if first and "---" in after else []
        if any(map(_KEY.match, inside)) and not any(map(str.strip, lines[:first])):
            what = "this front matter is shown as text, because empty lines precede it. Remove them."
            notes.append((first + 1, what))
        return FrontMatter(), 0, []
    end = next((number for number, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        error = NotebookError(f"{where}:1", "the front matter is not closed", "A line `---` at its end")
        return FrontMatter(), 0, [error]
    block = lines[: end + 1]
    try:
        data = _load(where, block, notes)
    except NotebookError as error:
        return FrontMatter(), end + 1, [error]
    valid = {key: value for key, value in data.items() if key in _TYPES and _fits(value, _TYPES[key])}
    values = {key: valid[key] for key in FrontMatter.__struct_fields__ if valid.get(key) is not None}
    values["requires"] = [kind.lower() for kind in values.get("requires", [])]
    platforms = valid["platforms"] if "platforms" in valid else valid.get("platform")
    if platforms is not None:
        listed = [platforms] if isinstance(platforms, str) else platforms
        values["platforms"] = [name.lower() for name in listed]
    return msgspec.convert(values, FrontMatter), end + 1, [*_check_keys(where, block, data)]


def unmet_requirement(front: FrontMatter, device: Device) -> str:
    """Return why a notebook's cells cannot run on this machine, in one line; empty if they can.

    >>> gpu = Device(kind="cuda", name="NVIDIA H200", slug="nvidia-h200")
    >>> unmet_requirement(FrontMatter(requires=["rocm"]), gpu)
    'needs a ROCM device; this machine has NVIDIA H200'
    """
    system = (os.environ.get("UVNOTE_PLATFORM") or platform.system()).lower()
    if front.platforms is not None and system not in front.platforms:
        if not front.platforms:
            return "is switched off (`platforms: []`)"
        return f"runs on {' or '.join(front.platforms)} only; this machine runs {system}"
    if front.requires and device.kind not in front.requires:
        kinds = " or ".join(kind.upper() for kind in front.requires)
        return f"needs a {kinds} device; this machine has {device.name}"
    return ""


def _load(where: str, block: Sequence[str], notes: list[tuple[int, str]]) -> dict[str, Any]:
    """Return the block's table. One that may take long to read is an error: aliases multiply what they name."""
    text = "\n".join(block[1:-1])
    if len(text) > _LONGEST:
        raise NotebookError(f"{where}:1", f"the front matter has more than {_LONGEST} characters", _EXAMPLE)
    depth = 0
    try:
        for number, event in enumerate[Any](yaml.parse(text, Loader=_LOADER)):
            at = f"{where}:{event.start_mark.line + 2 if event.start_mark else 1}"
            if isinstance(event, yaml.AliasEvent):
                what = "the front matter has an alias"
                raise NotebookError(at, what, "Each value in full", "Replace `*name`")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise NotebookError(at, f"the front matter is more than {_DEEPEST} levels deep", _EXAMPLE)
            if number > _MOST_EVENTS:
                raise NotebookError(at, f"the front matter has more than {_MOST_EVENTS // 2} keys", _EXAMPLE)
            plain = isinstance(event, yaml.ScalarEvent) and (event.tag or event.implicit[0])
            if plain and _LONG_NUMBER.match(event.value):
                raise NotebookError(at, "the front matter has a number of over 100 digits", _EXAMPLE)
        notes += _repeated_keys(yaml.compose(text, Loader=_LOADER))
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are safe ones
        check_values(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = f"the front matter is not valid YAML: {getattr(error, 'problem', None) or 'it cannot be read'}"
        at = f"{where}:{mark.line + 2 if mark else 1}"
        raise NotebookError(at, what, _EXAMPLE, "Quote values with `: `") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # Raised for dates and tags with impossible values, such as `2026-99-99`.
        what = f"the front matter has a value that cannot be read ({type(error).__name__})"
        raise NotebookError(f"{where}:1", what, _EXAMPLE, "Quote the value") from None
    if not isinstance(data, dict | None):
        raise NotebookError(f"{where}:2", f"the front matter is a {type(data).__name__}", _EXAMPLE)
    return {str(key): value for key, value in (data or {}).items()}


def _repeated_keys(node: yaml.Node | None) -> Iterator[tuple[int, str]]:
    """Yield the line of each key that a table has twice, and a note."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated_keys(item)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 2
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    what = f"{key.value} is also in line {lines[key.value]} of the front matter."
                    yield line, f"{what} The last one counts."
                lines.setdefault(key.value, line)
            yield from _repeated_keys(value)


def _check_keys(where: str, block: Sequence[str], data: dict[str, Any]) -> Iterator[NotebookError]:
    for key, value in data.items():
        at = f"{where}:{_line_of(key, block)}"
        if key not in _TYPES:
            hint = did_you_mean(key, _TYPES, "Known keys are " + ", ".join(sorted(_TYPES)))
            yield NotebookError(at, f"unknown front matter key {key!r}", "", hint)
        elif not _fits(value, _TYPES[key]):
            what = f"{key} is {reprlib.repr(value)}"
            yield NotebookError(at, what, _EXPECTED.get(_TYPES[key], "A word or a list"))
    requires = data.get("requires")
    for kind in requires if isinstance(requires, list) else []:
        if isinstance(kind, str) and kind.lower() not in DEVICE_KINDS:
            at = f"{where}:{_line_of('requires', block)}"
            hint = did_you_mean(kind.lower(), DEVICE_KINDS, "Remove it")
            yield NotebookError(
                at, f"requires has {kind!r}", f"A kind of device: {', '.join(DEVICE_KINDS)}", hint
            )
    expect = data.get("expect")
    for status, reason in expect.items() if isinstance(expect, dict) else ():
        at = f"{where}:{_line_of('expect', block)}"
        if status not in EXPECTABLE:
            what, expected = f"expect has {status!r}", f"A status of workloads: {', '.join(EXPECTABLE)}"
            yield NotebookError(at, what, expected, did_you_mean(str(status), EXPECTABLE))
        elif not isinstance(reason, str) or not reason.strip():
            what = f"expect has no reason for {status!r}"
            yield NotebookError(at, what, f'A sentence: `expect: {{ {status}: "why" }}`')


def _line_of(key: str, block: Sequence[str]) -> int:
    numbers = (number for number, line in enumerate(block, 1) if line.lstrip("\"'").startswith(key))
    return next(numbers, 1)


def _fits(value: object, kind: Any) -> bool:
    # A key without a value is allowed.
    try:
        msgspec.convert(value, kind | None)
    except msgspec.ValidationError:
        return False
    return True
