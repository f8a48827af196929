"""The fenced code blocks of a notebook, by the rules of CommonMark, and those that are commented out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

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
        """Whether the first word after the fence is exactly ``python``."""
        return self.info.split(maxsplit=1)[:1] == ["python"]

    @property
    def is_misnamed(self) -> bool:
        """Whether it has a cell's attributes, and a language that is similar to ``python``."""
        language, *attributes = self.info.split() or [""]
        similar = language != "python" and language.lower() in {"py", "python", "python3"}
        return similar and any(one.startswith(("id=", "outputs=", "needs=")) for one in attributes)


def count_commented(lines: Sequence[str]) -> int:
    """Return how many lines look like the first one of a commented cell."""
    return sum(_commented_info(line.strip()) is not None for line in lines)


def find_fences(lines: Sequence[str]) -> list[Fence]:
    """Return all fences of a text in order, including commented ones.

    As in uvnote, a cell is commented out by ``<!-- -->`` around each fence line, or by ``#`` before it. Such cells
    are not CommonMark, so they are replaced by empty lines before the rest is parsed.
    """
    rest, commented = list(lines), list[Fence]()
    while True:
        tokens = _parser().parse("\n".join(rest))
        opening = _first_commented(rest, tokens)
        if opening is None:
            break
        commented.append(_commented_fence(rest, *opening))
        for line in range(commented[-1].start, commented[-1].end):
            rest[line] = ""
    fences = [_fence(token, rest) for token in tokens if token.type == "fence"]
    return sorted([*fences, *commented], key=lambda fence: fence.start)


@cache
def _parser() -> MarkdownIt:
    """Return a shared parser: constructing one takes longer than reading a notebook."""
    # Inline text is not needed, and the rule "normalize" would count a lone carriage return as a new line.
    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["block"])
    return parser


def _fence(token: Token, lines: Sequence[str]) -> Fence:
    start, end = token.map or [0, 0]
    last = lines[end - 1].lstrip("> \t").strip() if end - 1 > start else ""
    closed = len(last) >= len(token.markup) and set(last) == {token.markup[0]}
    return Fence(
        info=token.info.strip(),
        code=token.content.removesuffix("\n") if token.content else "",
        start=start,
        end=end,
        closed=closed,
        nested=token.level > 0,
    )


def _first_commented(lines: Sequence[str], tokens: Sequence[Token]) -> tuple[int, str] | None:
    code = [token.map for token in tokens if token.type in {"fence", "code_block"} and token.map]
    for number, line in enumerate(lines):
        info = _commented_info(line.strip())
        if info is not None and not any(start <= number < end for start, end in code):
            return number, info
    return None


def _commented_info(line: str) -> str | None:
    """Return the info string if a line opens a commented cell, else None."""
    if line.startswith("<!-- ```python") and line.endswith("-->"):
        return line[4:-3].strip().removeprefix("```")
    uncommented = line.lstrip("#").strip()
    if line.startswith("#") and uncommented.startswith("```python"):
        return uncommented.removeprefix("```")
    return None


def _commented_fence(lines: Sequence[str], start: int, info: str) -> Fence:
    closing = ("```", "<!-- ```", "# ```")
    end = next((n for n in range(start + 1, len(lines)) if lines[n].strip().startswith(closing)), None)
    body = lines[start + 1 : end]
    return Fence(
        info=info,
        code="\n".join(body),
        start=start,
        end=len(lines) if end is None else end + 1,
        closed=end is not None,
        commented=True,
    )
