"""Tables in a terminal, and the groups of rows that they show."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.numbers import MISSING

_LAST_COLUMN = 22
"""Characters that a table leaves to its last column, if it is longer."""
K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order.

    >>> grouped((len(word), word) for word in ("norm", "mask", "rotary"))
    {4: ['norm', 'mask'], 6: ['rotary']}
    """
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most ``width`` characters, 0 for one line, with its indentation.

    It is broken at spaces, in a longer word after ``/``, and in a longer part of it after ``_``. Nothing is cut elsewhere.

    >>> wrapped("  error: in kernels_bench_tools/hub", 16)
    ['  error: in', '  kernels_bench_', '  tools/hub']
    """
    if len(text) <= width or not width:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    lines = [indent]
    for word in text.split():
        for space, part in zip_longest([" "], _parts(word, width - len(indent), "/_"), fillvalue=""):
            if lines[-1] == indent:
                lines[-1] += part
            elif len(lines[-1] + space + part) <= width:
                lines[-1] += space + part
            else:
                lines.append(indent + part)
    return lines


def _parts(word: str, width: int, marks: str) -> list[str]:
    """Return a word, or if it is too long its parts, which end with the first of these marks, and so on."""
    if len(word) <= width or not marks:
        return [word]
    pieces = re.findall(f"[^{marks[0]}]*{marks[0]}+|[^{marks[0]}]+", word)
    return [part for piece in pieces for part in _parts(piece, width, marks[1:])]


def table(
    rows: Iterable[Sequence[str]],
    right: Collection[int] = (),
    width: int = 0,
    whole: Collection[int] = (),
    optional: Sequence[int] = (),
) -> str:
    r"""Return rows, of which the first has the titles, as a text of columns; control characters become escapes.

    Columns whose numbers are in ``right`` are aligned to the right. A cell may have several lines. If the table is wider
    than ``width`` characters, ``optional`` columns are left out, one by one, and then the others become narrower, the
    widest one first, as far as their texts can be wrapped; words are broken only if that is not enough. Columns in
    ``whole`` are not wrapped. Optional columns without any value are always left out.

    >>> rows = [["implementation", "ms", "verdict"], ["norm/torch_norm", "1.25", "not measured separately"]]
    >>> print(table(rows, right={1}, width=33))
    implementation     ms  verdict
    norm/torch_norm  1.25  not
                           measured
                           separately
    """
    cells = [[visible(text).split("\n") for text in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    longest = [max(len(line) for lines in column for line in lines) for column in columns]
    sizes = {
        at: longest[at]
        for at, column in enumerate(columns)
        if at not in optional or {*map("".join, column[1:])} - {"", MISSING}
    }
    for at in optional:
        # The last column, with reasons, is wrapped before others are left out.
        *others, last = sizes
        needed = sum(longest[other] + 2 for other in others) + min(longest[last], _LAST_COLUMN)
        if at in sizes and needed > width > 0:
            del sizes[at]
    for marks in ("", "/", "/_"):
        least = {
            at: sizes[at]
            if at in right or at in whole
            else max(_least_width(line, marks) for lines in columns[at] for line in lines)
            for at in sizes
        }
        while sum(sizes.values()) + 2 * len(sizes) - 2 > width > 0:
            at = max(sizes, key=lambda at: sizes[at] * (sizes[at] > least[at]))
            if sizes[at] <= least[at]:
                break
            sizes[at] -= 1
    made = []
    for row in cells:
        folded = [[part for line in row[at] for part in wrapped(line, size)] for at, size in sizes.items()]
        for texts in zip_longest(*folded, fillvalue=""):
            parts = [
                text.rjust(size) if at in right else text.ljust(size)
                for text, (at, size) in zip(texts, sizes.items(), strict=True)
            ]
            made.append("  ".join(parts).rstrip())
    return "\n".join(made)


def _least_width(line: str, marks: str) -> int:
    """Return the longest of the parts in which a line can be broken at spaces and marks, with the indentation."""
    parts = [part for word in line.split() for part in _parts(word, 1, marks)]
    return len(line) - len(line.lstrip()) + max(map(len, parts), default=0)
