"""Tables as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence

from kernels_bench_tools.summarize.exports import Value, safe


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], words: Collection[str]) -> str:
    """Return a table whose columns are numbers, but for those named."""
    marks = ["---" if name in words else "---:" for name in header]
    return "\n".join([_markdown_line(header), f"| {' | '.join(marks)} |", *map(_markdown_line, rows)]) + "\n"


def _markdown_line(texts: Sequence[str]) -> str:
    # What Markdown would take for markup, and what would end a cell or a line.
    cells = (re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", text.replace("\n", " ")) for text in texts)
    return f"| {' | '.join(cells)} |"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """Return a table as CSV, lines ended by a line feed."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([safe(value) for value in row])
    return file.getvalue()
