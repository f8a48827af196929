"""Cells: fences that run, with their attributes and code.

An attribute is a name in ``ATTRIBUTES``, a field of ``Cell``, and its value in ``read_cell``; if it can change the
cell's result, it is also part of the key (``run/cache/key.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from markdown_it import MarkdownIt
from uvnote.parser import generate_cell_id, parse_attributes

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.file_io import read_file, real_path
from kernels_bench_tools.notebooks.header import read_header, split_header
from kernels_bench_tools.notebooks.project import Project, is_pattern, join_path
from kernels_bench_tools.records.code import code_digest
from kernels_bench_tools.text.hiding import has_credentials
from kernels_bench_tools.text.words import did_you_mean

_CLOSING = ("```", "<!-- ```", "# ```")
_FOREIGN = re.compile(
    r"\{(code-cell|code-block|python|py|r|julia|marimo|\.python)\b|python3?\s*(\{|\.marimo)", re.I
)
"""A cell of MyST, Quarto, R Markdown or marimo."""
MOST_COMMENTED = 100
"""Commented cells in a notebook: to read one, the whole text is parsed again."""


@dataclass(frozen=True)
class Fence:
    """A fenced code block in lines ``start`` to ``end`` (exclusive), counted from 0."""

    info: str
    """The words after the opening fence."""
    code: str
    """The text between the fences, without the last line feed."""
    start: int
    end: int
    closed: bool = True
    nested: bool = False
    """Whether it is inside a list or a quotation."""
    commented: bool = False

    @property
    def is_python(self) -> bool:
        """Whether the first word after the fence is exactly ``python``, without another tool's attributes."""
        return self.info.split(maxsplit=1)[:1] == ["python"] and not _FOREIGN.match(self.info)

    @property
    def note(self) -> str:
        """What is most likely a mistake, and what to do; empty if nothing is."""
        if _FOREIGN.match(self.info):
            what = "this fence is a cell of another tool (MyST, Quarto, marimo), and does not run here."
            return f"{what} Write ```python id=NAME to run it."
        if self.is_python and self.nested:
            what = "a python fence in a list or a quotation is an example, not a cell."
            return f"{what} Move it out to run it."
        language, *attributes = self.info.split() or [""]
        is_similar = language != "python" and language.lower() in {"py", "python", "python3"}
        if is_similar and any(word.startswith(("id=", "outputs=", "needs=")) for word in attributes):
            return "this fence is an example, not a cell. Write ```python if it should run."
        return ""


def find_fences(lines: Sequence[str]) -> list[Fence]:
    """Return all fences of a text in order, including commented ones.

    As in uvnote, a cell is commented out by ``<!-- -->`` around each fence line, or by ``#`` before it. Such cells
    are not CommonMark, so they are replaced by empty lines before the rest is parsed.
    """
    rest, fences = list(lines), list[Fence]()
    while True:
        tokens = _parser().parse("\n".join(rest))
        code = [token.map for token in tokens if token.type in {"fence", "code_block"} and token.map]
        openings = (
            (number, info)
            for number, line in enumerate(rest)
            if (info := commented_info(line.strip())) is not None
            and not any(start <= number < end for start, end in code)
        )
        start, info = next(openings, (-1, ""))
        if start < 0:
            break
        closing = (n for n in range(start + 1, len(rest)) if rest[n].strip().startswith(_CLOSING))
        last = next(closing, None)
        end = len(rest) if last is None else last + 1
        body = "\n".join(rest[start + 1 : last])
        fences.append(Fence(info, body, start, end, closed=last is not None, commented=True))
        rest[start:end] = [""] * (end - start)
    for token in tokens:
        if token.type == "fence":
            start, end = token.map or [0, 0]
            ending = rest[end - 1].lstrip("> \t").strip() if end - 1 > start else ""
            closed = len(ending) >= len(token.markup) and set(ending) == {token.markup[0]}
            body = token.content.removesuffix("\n") if token.content else ""
            fences.append(Fence(token.info.strip(), body, start, end, closed, nested=token.level > 0))
    return sorted(fences, key=lambda fence: fence.start)


@cache
def _parser() -> MarkdownIt:
    """Return a shared parser: constructing one takes longer than reading a notebook."""
    # Inline text is not needed, and the rule "normalize" would count a lone carriage return as a new line.
    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["block"])
    return parser


def commented_info(line: str) -> str | None:
    """Return the info string if a line opens a commented cell, else None."""
    if line.startswith("<!-- ```python") and line.endswith("-->"):
        return line[4:-3].strip().removeprefix("```")
    uncommented = line.lstrip("#").strip()
    if line.startswith("#") and uncommented.startswith("```python"):
        return uncommented.removeprefix("```")
    return None


_FLAGS = ("collapse-code", "collapse-output", "collapsed")
ATTRIBUTES = ("id", "deps", "outputs", "needs", "depends", *_FLAGS, "timeout", "script")
_LINE = re.compile(r"at line (\d+)")
_SAFE_ID = re.compile(r"\w[\w.-]*")
_TIMEOUT_DIGITS = 7

Report = Callable[..., None]
"""Adds a ``NotebookError``: what is wrong, what was expected, what to do."""


@dataclass
class Cell:
    id: str
    code: str
    deps: list[str]
    outputs: list[str]
    needs: list[str]
    collapse_code: bool = False
    collapse_output: bool = False
    commented: bool = False
    timeout: int | None = None
    """Seconds; None for the default."""
    script: str | None = None
    """File that holds the code, as written in the notebook."""
    named: bool = True
    """Whether the notebook names it; otherwise the id is made from its code."""
    file_line: int = 0
    """Line number of the opening fence in the file."""
    imported: dict[str, str] = field(default_factory=dict)
    """Code of the needed cells of the same notebook that it imports, directly or through others, by their ids."""

    @property
    def sources(self) -> str:
        """All code of the notebook that its process runs."""
        return "\n".join([self.code, *(split_header(code)[0] for code in self.imported.values())])

    @property
    def digest(self) -> str:
        """Digest of all code of the notebook that its process runs: whether records are of this code."""
        return code_digest(self.sources)

    @property
    def measures(self) -> bool:
        return any(output.endswith(".jsonl") for output in self.outputs)


def is_reference(need: str) -> bool:
    """Return whether a need is a path (``path.md``, ``path.md:cell``, data files), not a cell of the notebook."""
    return "/" in need or is_pattern(need) or need.partition(":")[0].endswith(".md")


def read_cell(
    project: Project, name: str, fence: Fence, offset: int, problems: list[NotebookError]
) -> Cell | None:
    """Return the cell of a python fence, or None if it is empty; append errors to ``problems``.

    ``offset`` is the number of lines before the notebook's body.
    """
    where = f"{name}:{offset + fence.start + 1}"

    def report(what: str, expected: str = "", remedy: str = "") -> None:
        if not fence.commented:  # a commented cell does not run
            problems.append(NotebookError(where, what, expected, remedy))

    attributes: dict[str, str] = parse_attributes(fence.info)
    script = attributes.get("script")
    code = fence.code if script is None else _script_text(project, name, script, report)
    if not code and not fence.code:
        return None
    _check_names(fence.info, report)
    cell = Cell(
        id=attributes.get("id", generate_cell_id(code)),
        code=code,
        deps=_items(attributes.get("deps")),
        outputs=_items(attributes.get("outputs")),
        needs=_items(attributes.get("needs", attributes.get("depends"))),
        collapse_code=_flag(attributes, "collapse-code"),
        collapse_output=_flag(attributes, "collapse-output"),
        commented=fence.commented,
        timeout=_seconds(attributes.get("timeout"), report),
        script=script,
        named="id" in attributes,
        file_line=offset + fence.start + 1,
    )
    _check_values(cell, attributes, report)
    return cell


def _items(text: str | None) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()] if text else []


def _flag(attributes: dict[str, str], name: str) -> bool:
    return attributes.get("collapsed", attributes.get(name, "")).lower() == "true"


def _seconds(text: str | None, report: Report) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _TIMEOUT_DIGITS or int(text) == 0:
        report(f"timeout={text[:20]} is invalid", "A whole number of seconds, such as timeout=600")
        return None
    return int(text)


def _script_text(project: Project, name: str, script: str, report: Report) -> str:
    inside = join_path(name.rpartition("/")[0], script)
    path = project.root / inside if inside else None
    if path is None or not real_path(path).is_relative_to(project.root.resolve()):
        shown = script.replace("\0", "\ufffd")
        report(f"script={shown} is outside the project", "A path relative to the notebook's folder")
        return ""
    try:
        return read_file(path).decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        report(f"script={script} cannot be read: {getattr(error, 'strerror', error)}", "A UTF-8 file")
        return ""


def _check_names(info: str, report: Report) -> None:
    seen: set[str] = set()
    for word in info.split()[1:]:
        key, equals, value = word.partition("=")
        if not key or not equals or not value:
            report(f"{word!r} is not an attribute", "NAME=VALUE without spaces")
            return  # what follows is most likely part of the same attribute
        if key not in ATTRIBUTES:
            hint = did_you_mean(key, ATTRIBUTES, f"Known attributes are {', '.join(ATTRIBUTES)}")
            report(f"unknown attribute {key!r}", "", hint)
        elif key in seen:
            report(f"{key}= is given twice", "", "Remove one of them")
        seen.add(key)


def _check_values(cell: Cell, attributes: dict[str, str], report: Report) -> None:
    if not _SAFE_ID.fullmatch(cell.id) or ".." in cell.id:
        report(f"id={cell.id} is invalid", "Letters, digits, `_`, `-` and `.`, since it becomes a file name")
    for output in cell.outputs:
        if output.startswith("/") or ".." in output.split("/") or "\\" in output:
            report(f"outputs={output} is outside the cell's folder", "A relative path without `..`")
    for flag in _FLAGS:
        if attributes.get(flag, "true").lower() not in {"true", "false"}:
            report(f"{flag}={attributes[flag]} is invalid", "true or false")
    try:
        header = read_header(cell.code)
    except ValueError as error:
        # Lines are the notebook's, other than those of a script.
        before = 0 if cell.script else cell.file_line
        said = _LINE.sub(lambda match: f"at line {int(match[1]) + before}", str(error))
        report(f"the cell cannot run: {said}", "A `# /// script` header as PEP 723 describes")
        return
    if has_credentials("\n".join([split_header(cell.code)[1], *cell.deps])):
        what = "a URL in its header has a user name, password or token, which pages and logs would show"
        remedy = "Use a Git credential helper, or UV_INDEX for an index"
        report(what, "A URL without credentials", remedy)
    if cell.deps and header is not None:
        remedy = "Move deps= into the header's dependencies"
        report("the cell has both deps= and a header", "One of them", remedy)
