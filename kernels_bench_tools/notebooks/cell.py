"""Cells: the fences that run, their attributes and their code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from uvnote.parser import CodeCell, generate_cell_id, parse_attributes

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.notebooks.fences import Fence
from kernels_bench_tools.notebooks.header import read_header
from kernels_bench_tools.notebooks.paths import is_pattern, join
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.text import did_you_mean

ATTRIBUTES = (
    "id",
    "deps",
    "outputs",
    "needs",
    "depends",
    "collapse-code",
    "collapse-output",
    "collapsed",
    "timeout",
    "script",
)
_SAFE_ID = re.compile(r"\w[\w.-]*")
_LONGEST_TIMEOUT = 7
"""Digits; four months."""
_FLAGS = ("collapse-code", "collapse-output", "collapsed")

Complain = Callable[..., None]


@dataclass
class Cell(CodeCell):  # type: ignore[misc]  # uvnote has no types
    """A cell: uvnote's own type, with what its main branch and we add. Its lines count from the body."""

    # uvnote's fields again, with types; dataclasses keep their order.
    id: str
    code: str
    deps: list[str]
    outputs: list[str]
    needs: list[str]
    line_start: int
    line_end: int
    collapse_code: bool = False
    collapse_output: bool = False
    commented: bool = False
    timeout: int | None = None
    """Seconds that it may run; None for the default."""
    script: str | None = None
    """The file that its code comes from, as written in the notebook."""
    file_line: int = 0
    """Line of the opening fence in the file, from 1."""
    local_needs: list[str] = field(default_factory=list)
    """Ids of needed cells of this notebook."""
    references: list[str] = field(default_factory=list)
    """Needs outside this notebook, as written: ``path.md``, ``path.md:cell``, or a path of data files."""

    @property
    def measures(self) -> bool:
        """Whether it leaves records, which is what makes a cell a measurement."""
        return any(output.endswith(".jsonl") for output in self.outputs)


def is_reference(need: str) -> bool:
    """Return whether a need is a path, and not the id of a cell in the same notebook."""
    return "/" in need or is_pattern(need) or need.partition(":")[0].endswith(".md")


def read_cell(
    project: Project, name: str, fence: Fence, offset: int, problems: list[NotebookError]
) -> Cell | None:
    """Return the cell of a fence, or None if it holds none; what is wrong is added to ``problems``.

    Args:
        project: The project that its ``script=`` must stay in.
        name: The notebook's path within the project.
        fence: A fence whose first word is ``python``.
        offset: Lines of front matter before the notebook's body.
        problems: Where to put what is wrong.
    """
    where = f"{name}:{offset + fence.start + 1}"

    def complain(what: str, expected: str = "", remedy: str = "") -> None:
        # A commented cell does not run, so nothing can be wrong with it.
        if not fence.commented:
            problems.append(NotebookError(where, what, expected, remedy))

    attributes: dict[str, str] = parse_attributes(fence.info)
    script = attributes.get("script")
    code = fence.code if script is None else _script_text(project, name, script, complain)
    if not code and not fence.code:
        return None
    _check_names(fence.info, complain)
    cell = Cell(
        id=attributes.get("id", generate_cell_id(code)),
        code=code,
        deps=_items(attributes.get("deps")),
        outputs=_items(attributes.get("outputs")),
        needs=_items(attributes.get("needs", attributes.get("depends"))),
        line_start=fence.start + 1,
        line_end=fence.end - 1 if fence.closed else fence.end,
        collapse_code=_flag(attributes, "collapse-code"),
        collapse_output=_flag(attributes, "collapse-output"),
        commented=fence.commented,
        timeout=_seconds(attributes.get("timeout"), complain),
        script=script,
        file_line=offset + fence.start + 1,
    )
    cell.local_needs = [need for need in cell.needs if not is_reference(need)]
    cell.references = [need for need in cell.needs if is_reference(need)]
    _check_values(cell, attributes, complain)
    return cell


def _items(text: str | None) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()] if text else []


def _flag(attributes: dict[str, str], name: str) -> bool:
    return attributes.get("collapsed", attributes.get(name, "")).lower() == "true"


def _seconds(text: str | None, complain: Complain) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_TIMEOUT or int(text) == 0:
        complain(f"timeout={text[:20]} is wrong", "A whole number of seconds, such as timeout=600")
        return None
    return int(text)


def _script_text(project: Project, name: str, script: str, complain: Complain) -> str:
    inside = join(name.rpartition("/")[0], script)
    path = project.root / inside if inside else None
    if path is None or not path.resolve().is_relative_to(project.root.resolve()):
        shown = script.replace("\0", "\ufffd")
        complain(f"script={shown} is no path within the project", "One from the notebook's folder")
        return ""
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        complain(f"script={script} cannot be read: {error}", "A UTF-8 file")
        return ""


def _check_names(info: str, complain: Complain) -> None:
    seen: set[str] = set()
    for word in info.split()[1:]:
        key, equals, value = word.partition("=")
        if not key or not equals or not value:
            complain(f"{word!r} is no attribute", "Attributes are NAME=VALUE without spaces")
            return  # the words after it are most likely its other parts
        if key not in ATTRIBUTES:
            hint = did_you_mean(key, ATTRIBUTES, f"Known are {', '.join(ATTRIBUTES)}")
            complain(f"unknown attribute {key!r}", "", hint)
        elif key in seen:
            complain(f"{key}= is given twice", "", "Remove one of them")
        seen.add(key)


def _check_values(cell: Cell, attributes: dict[str, str], complain: Complain) -> None:
    if not _SAFE_ID.fullmatch(cell.id) or ".." in cell.id:
        complain(
            f"id={cell.id} is not a name", "Letters, digits, `_`, `-` and `.`, since it becomes a file name"
        )
    for output in cell.outputs:
        if output.startswith("/") or ".." in output.split("/") or "\\" in output:
            complain(f"outputs={output} leaves the cell's folder", "A relative path without `..`")
    for flag in _FLAGS:
        if attributes.get(flag, "true").lower() not in {"true", "false"}:
            complain(f"{flag}={attributes[flag]} is wrong", "true or false")
    try:
        header = read_header(cell.code)
    except ValueError as error:
        complain(f"the cell cannot be run: {error}", "A `# /// script` header as PEP 723 describes")
        return
    if cell.deps and header is not None:
        complain(
            "it has deps= and a header of its own", "One of them", "Move deps= into the header's dependencies"
        )
