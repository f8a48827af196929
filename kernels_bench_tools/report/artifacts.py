"""Artifacts of cells: files with their site paths, and their previews on pages."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from html import escape
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

from markupsafe import Markup

from kernels_bench_tools.records.build import NotebookRun
from kernels_bench_tools.report.chart import ChartPanel, inline_chart
from kernels_bench_tools.report.page import Links, Page
from kernels_bench_tools.report.paths import SitePaths, relative_url, stays_inside
from kernels_bench_tools.text import size

MAX_ROWS = 200
"""Rows of a CSV file that a page shows; the file itself holds all of them."""

_DATA = {"csv", "json", "jsonl"}
_SVG_LINK = re.compile(rb'(<a\b[^>]*?\bhref=")([^"#:?]+)(")')
MAX_TEXT = 100_000
"""Largest Markdown file in bytes that a page shows; a larger one is a link."""
_IMAGES = {"png", "jpg", "jpeg", "gif", "webp"}


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
    numeric: list[bool]
    """For each column, whether it holds only numbers; these are shown with six digits."""
    body: Markup
    """The first rows as HTML."""
    more: int
    """Rows that are not shown."""


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
    # Not in a template, which would be slow for thousands of cells.
    cells = (
        [
            f'<td class="number">{escape(_short(text))}</td>' if number else f"<td>{escape(text)}</td>"
            for text, number in zip(row, numeric, strict=True)
        ]
        for row in rows
    )
    body = Markup("\n".join(f"<tr>{''.join(row)}</tr>" for row in cells))  # noqa: S704 - texts are escaped
    return CsvTable(header, numeric, body, more=sum(1 for _ in reader))


def _short(text: str) -> str:
    return f"{float(text):.6g}" if len(text) > 8 else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class ArtifactPreview:
    """An artifact as a page shows it."""

    name: str
    url: str
    """Empty if the file is missing."""
    size: str
    kind: str
    """``figure``, ``image``, ``table``, ``text`` or ``file``."""
    figure: Markup | None = None
    """An SVG file without panels."""
    panels: Sequence[ChartPanel] = ()
    """The panels of a chart; then ``figure`` is None."""
    table: CsvTable | None = None
    text: Markup | None = None
    """Rendered Markdown."""
    data: Sequence[ArtifactPreview] = ()
    """Data files of a chart, to download."""


def link(artifact: Artifact, page: Page) -> ArtifactPreview:
    """Return an artifact as a link."""
    return ArtifactPreview(
        artifact.name, page.url(artifact.path) if artifact.exists else "", artifact.size, "file"
    )


def preview(artifact: Artifact, page: Page) -> ArtifactPreview:
    """Return an artifact with its content, or as a link where its kind has no preview."""
    view = link(artifact, page)
    if not artifact.exists:
        return view
    if artifact.suffix in _IMAGES:
        return replace(view, kind="image")
    if artifact.suffix == "svg":
        return figure_preview(artifact, page)
    if artifact.suffix == "csv":
        try:
            return replace(view, kind="table", table=read_csv(artifact.file))
        except csv.Error:
            return view
    if artifact.suffix == "md" and artifact.file.stat().st_size <= MAX_TEXT:
        from kernels_bench_tools.report.markup import render_markdown  # few pages show any

        text = artifact.file.read_text(encoding="utf-8", errors="replace").replace("\0", "\ufffd")
        return replace(view, kind="text", text=render_markdown(text))
    return view


def figure_preview(artifact: Artifact, page: Page, elsewhere: Set[str] = frozenset()) -> ArtifactPreview:
    """Return a chart's panels, without those of the views that are shown ``elsewhere``; the whole figure if it has none.

    Links in it are relative to its notebook's folder; those without a target are dropped.
    """
    data = [link(beside, page) for beside in artifact.data if beside.exists]
    view = replace(link(artifact, page), data=data)

    def relink(url: str) -> str | None:
        if url.startswith(("http:", "https:")):
            return url
        target, mark, fragment = url.partition("#")
        found = _find(artifact, target, page.links)
        return None if found is None else page.url(found) + mark + fragment

    try:
        panels, figure = inline_chart(
            artifact.file.read_bytes(), artifact.name, page.unique_id, relink, elsewhere
        )
    except (OSError, ValueError, RecursionError):
        # An image runs no scripts, whatever the file contains.
        return replace(view, kind="image")
    return replace(view, kind="figure", panels=panels, figure=figure)


def relinked(artifact: Artifact, links: Links) -> bytes:
    """Return a figure whose links are relative to its place in the site, not to its notebook's page."""

    def relink(match: re.Match[bytes]) -> bytes:
        target = _find(artifact, match[2].decode(errors="replace"), links)
        return (
            match[0] if target is None else match[1] + relative_url(target, artifact.path).encode() + match[3]
        )

    return _SVG_LINK.sub(relink, artifact.file.read_bytes())


def _find(artifact: Artifact, url: str, links: Links) -> str | None:
    """Return the site path that a relative URL in a figure leads to; None if the site does not have it."""
    return links.find(posixpath.normpath(posixpath.join(posixpath.dirname(artifact.notebook), unquote(url))))
