"""Tables as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence

from kernels_bench_tools.summarize.export import Value, safe


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str]) -> str:
    """Return a table whose columns are numbers, but for those named."""
    marks = ["---" if name in words else "---:" for name in header]
    return "\n".join([_markdown_line(header), f"| {' | '.join(marks)} |", *map(_markdown_line, rows)]) + "\n"


def noted_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str], words: Collection[str]
) -> str:
    """Return a table whose rows have notes: a number in the table, what it says once below.

    Args:
        header: Names of the columns, without that of the notes.
        rows: Their texts.
        notes: One for each row, empty for none.
        words: Columns that are no numbers.
    """
    numbers = {note: str(number) for number, note in enumerate(dict.fromkeys(filter(None, notes)), 1)}
    numbered = [[*row, numbers.get(note, "")] for row, note in zip(rows, notes, strict=True)]
    table = markdown_table([*header, "Note"], numbered, words)
    return "\n".join([table, *(f"{number}. {_escaped(note)}" for note, number in numbers.items()), ""])


def _markdown_line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, texts))} |"


def _escaped(text: str) -> str:
    """Return a text without what Markdown would take for markup, or for the end of a cell or a line."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """Return a table as CSV, lines ended by a line feed."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([safe(value) for value in row])
    return file.getvalue()
