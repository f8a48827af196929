"""Artifacts of cells: where each lies, and what a page shows of it."""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from markupsafe import Markup

from kernels_bench_tools.publish.numbers import size
from kernels_bench_tools.publish.page import Page
from kernels_bench_tools.publish.paths import SitePaths, stays_inside
from kernels_bench_tools.publish.svg import Panel, SeriesName, Setting, inline_panels, inline_svg
from kernels_bench_tools.runs import NotebookRun

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


def _short(text: str) -> str:
    return f"{float(text):.6g}" if len(text) > 8 else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def inline_figure(artifact: Artifact, page: Page, names: Mapping[str, SeriesName]) -> Markup | None:
    """Return an SVG artifact as an element of ``page``, or None if it cannot be read as one.

    Links in it count from its notebook's folder, and are dropped where they lead nowhere.
    """
    try:
        return inline_svg(artifact.file.read_bytes(), artifact.name, _setting(artifact, page, names))
    except (OSError, ValueError, RecursionError):
        return None


def inline_figure_panels(
    artifact: Artifact, page: Page, names: Mapping[str, SeriesName], most: int | None = None
) -> list[Panel]:
    """Return the panels of an SVG artifact as elements of ``page``, ``most`` at most; none if it is to stay whole."""
    try:
        return inline_panels(artifact.file.read_bytes(), artifact.name, _setting(artifact, page, names), most)
    except (OSError, ValueError, RecursionError):
        return []


def _setting(artifact: Artifact, page: Page, names: Mapping[str, SeriesName]) -> Setting:
    folder = posixpath.dirname(artifact.notebook)

    def relink(url: str) -> str | None:
        if url.startswith(("http:", "https:")):
            return url
        target, mark, fragment = url.partition("#")
        found = page.links.find(posixpath.normpath(posixpath.join(folder, unquote(target))))
        return None if found is None else page.url(found) + mark + fragment

    return Setting(page.unique_id, relink, names)
