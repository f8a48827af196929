"""Artifacts of cells: where each lies, and what a page shows of it."""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from markupsafe import Markup, escape

from kernels_bench_tools.report.chart.svg import Panel, SeriesName, Setting, inline_figure
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths, stays_inside
from kernels_bench_tools.schema.build import NotebookRun
from kernels_bench_tools.text import size

MAX_ROWS = 200
"""Rows of a CSV file that a page shows; the file itself holds all of them."""

_DATA = {"csv", "json", "jsonl"}


@dataclass(frozen=True)
class Artifact:
    """A file that a cell left."""

    name: str
    notebook: str
    cell: str
    file: Path
    path: str
    """Site path."""
    data: tuple[Artifact, ...] = ()
    """Of a figure: what the same cell left of the data that it was drawn from."""

    @property
    def exists(self) -> bool:
        """Whether the file is there to be published."""
        return self.file.is_file()

    @property
    def size(self) -> str:
        """How large it is, in words."""
        return size(self.file.stat().st_size) if self.exists else "missing"

    @property
    def suffix(self) -> str:
        """Ending of its name, lower case: ``"svg"``."""
        return posixpath.splitext(self.name)[1].lower().lstrip(".")


def notebook_artifacts(root: Path, paths: SitePaths, notebook: NotebookRun) -> Iterator[Artifact]:
    """Yield the artifacts of a notebook's cells in their order; a name that leaves its folder is none."""
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
    """For each column, whether all it holds are numbers; these are shown with six digits."""

    @property
    def body(self) -> Markup:
        """The rows as elements of a page: thousands of cells, of which a template would make each by itself."""
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
    """Return texts, of which none holds a NUL, ready for a page; one call for all takes a tenth of one for each."""
    return str(escape("\0".join(texts))).split("\0") if texts else []


def _short(text: str) -> str:
    return f"{float(text):.6g}" if len(text) > 8 else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def figure_elements(
    artifact: Artifact, page: Page, names: Mapping[str, SeriesName], elsewhere: Set[str] = frozenset()
) -> tuple[list[Panel], Markup | None]:
    """Return an SVG artifact as elements of ``page``: its panels, or all of it if it cannot be cut.

    Panels of series that are shown ``elsewhere``, by their slugs, are left out.
    Neither if it cannot be read. Links in it count from its notebook's folder, and are dropped where they lead nowhere.
    """
    try:
        return inline_figure(
            artifact.file.read_bytes(), artifact.name, _setting(artifact, page, names), elsewhere
        )
    except (OSError, ValueError, RecursionError):
        return [], None


def _setting(artifact: Artifact, page: Page, names: Mapping[str, SeriesName]) -> Setting:
    folder = posixpath.dirname(artifact.notebook)

    def relink(url: str) -> str | None:
        if url.startswith(("http:", "https:")):
            return url
        target, mark, fragment = url.partition("#")
        found = page.links.find(posixpath.normpath(posixpath.join(folder, unquote(target))))
        return None if found is None else page.url(found) + mark + fragment

    return Setting(page.unique_id, relink, names)
