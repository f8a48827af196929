"""Artifacts of cells: files with their site paths, and the beginning of a CSV file."""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from markupsafe import Markup, escape

from kernels_bench_tools.report.paths import SitePaths, stays_inside
from kernels_bench_tools.schema.build import NotebookRun
from kernels_bench_tools.text import size

MAX_ROWS = 200
"""Rows of a CSV file that a page shows; the file itself holds all of them."""

_DATA = {"csv", "json", "jsonl"}


@dataclass(frozen=True)
class Artifact:
    """A file that a cell wrote."""

    name: str
    notebook: str
    cell: str
    file: Path
    path: str
    """Site path."""
    data: tuple[Artifact, ...] = ()
    """Of a chart: the data files of the same cell."""

    @property
    def exists(self) -> bool:
        """Whether the file exists."""
        return self.file.is_file()

    @property
    def size(self) -> str:
        """Its size as text."""
        return size(self.file.stat().st_size) if self.exists else "missing"

    @property
    def suffix(self) -> str:
        """Ending of its name, lower case: ``"svg"``."""
        return posixpath.splitext(self.name)[1].lower().lstrip(".")


def notebook_artifacts(root: Path, paths: SitePaths, notebook: NotebookRun) -> Iterator[Artifact]:
    """Yield the artifacts of a notebook's cells in their order; names that leave their folder are skipped."""
    for cell in notebook.cells:
        found = [
            Artifact(name, notebook.path, cell.id, root / file, paths.artifact(notebook.path, cell.id, name))
            for name, file in cell.artifacts.items()
            if stays_inside(name)
        ]
        data = tuple(artifact for artifact in found if artifact.suffix in _DATA)
        for artifact in found:
            yield replace(artifact, data=data) if artifact.suffix == "svg" else artifact


@dataclass(frozen=True)
class CsvTable:
    """The beginning of a CSV file."""

    header: list[str]
    rows: list[list[str]]
    more: int
    """Rows that are not shown."""
    numeric: list[bool]
    """For each column, whether it holds only numbers; these are shown with six digits."""

    @property
    def body(self) -> Markup:
        """The rows as HTML; a template would be slow for thousands of cells."""
        starts = ['<td class="number">' if number else "<td>" for number in self.numeric]
        lines = (
            "".join(f"{start}{text}</td>" for start, text in zip(starts, _escaped(row), strict=True))
            for row in self.rows
        )
        return Markup("\n".join(f"<tr>{line}</tr>" for line in lines))  # noqa: S704 - every text was escaped


def read_csv(file: Path) -> CsvTable:
    """Return the first rows of a CSV file, each as long as the header.

    Raises:
        csv.Error: It is not CSV, such as a field without an end.
    """
    text = file.read_bytes().decode("utf-8-sig", errors="replace").replace("\0", "\ufffd")
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, [])
    rows = [(row + [""] * len(header))[: len(header)] for row in islice(reader, MAX_ROWS)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    numeric = [any(column) and all(_is_number(text) for text in column if text) for column in columns]
    more = sum(1 for _ in reader)
    shown = [
        [_short(text) if number else text for text, number in zip(row, numeric, strict=True)] for row in rows
    ]
    return CsvTable(header, shown, more, numeric)


def _escaped(texts: Sequence[str]) -> list[str]:
    """Return texts without NUL escaped for HTML, in one call because that is ten times as fast."""
    return str(escape("\0".join(texts))).split("\0") if texts else []


def _short(text: str) -> str:
    return f"{float(text):.6g}" if len(text) > 8 else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
