"""Artifacts on pages: a chart, an image, a table, text or a link."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from urllib.parse import unquote

from markupsafe import Markup

from kernels_bench_tools.report.artifacts import Artifact, CsvTable, read_csv
from kernels_bench_tools.report.chart import ChartPanel, inline_chart
from kernels_bench_tools.report.page import Links, Page

_SVG_LINK = re.compile(rb'(<a\b[^>]*?\bhref=")([^"#:?]+)(")')
MAX_TEXT = 100_000
"""Largest Markdown file in bytes that a page shows; a larger one is a link."""
_IMAGES = {"png", "jpg", "jpeg", "gif", "webp"}


@dataclass(frozen=True)
class ArtifactView:
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
    data: Sequence[ArtifactView] = ()
    """Of a chart: its data files, to download."""


def missing(name: str) -> ArtifactView:
    """Return an artifact that a notebook refers to and no cell wrote."""
    return ArtifactView(name, "", "", "file")


def link(artifact: Artifact, page: Page) -> ArtifactView:
    """Return an artifact as a link."""
    return ArtifactView(
        artifact.name, page.url(artifact.path) if artifact.exists else "", artifact.size, "file"
    )


def preview(artifact: Artifact, page: Page) -> ArtifactView:
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
        return replace(view, kind="text", text=_text(artifact))
    return view


def _text(artifact: Artifact) -> Markup:
    from kernels_bench_tools.report.prose import render_markdown  # few pages show any

    return render_markdown(
        artifact.file.read_text(encoding="utf-8", errors="replace").replace("\0", "\ufffd")
    )


def figure_preview(artifact: Artifact, page: Page, elsewhere: Set[str] = frozenset()) -> ArtifactView:
    """Return a chart's panels, without those of the views that are shown ``elsewhere``; the whole figure if it has none.

    Links in it are relative to its notebook's folder; those without a target are dropped.
    """
    data = [link(beside, page) for beside in artifact.data if beside.exists]
    view = replace(link(artifact, page), data=data)
    folder = posixpath.dirname(artifact.notebook)

    def relink(url: str) -> str | None:
        if url.startswith(("http:", "https:")):
            return url
        target, mark, fragment = url.partition("#")
        found = page.links.find(posixpath.normpath(posixpath.join(folder, unquote(target))))
        return None if found is None else page.url(found) + mark + fragment

    try:
        panels, figure = inline_chart(
            artifact.file.read_bytes(), artifact.name, page.unique_id, relink, elsewhere
        )
    except (OSError, ValueError, RecursionError):
        # Nothing in an image acts, whatever the file contains.
        return replace(view, kind="image")
    return replace(view, kind="figure", panels=panels, figure=figure)


def image(artifact: Artifact, page: Page) -> ArtifactView:
    """Return a figure as an image, which is not interactive and keeps the page small."""
    return replace(link(artifact, page), kind="image")


def relinked(artifact: Artifact, links: Links) -> bytes:
    """Return a figure whose links are relative to its place in the site, not to its notebook's page."""
    folder = posixpath.dirname(artifact.notebook)

    def relink(match: re.Match[bytes]) -> bytes:
        target = links.find(posixpath.normpath(posixpath.join(folder, match[2].decode(errors="replace"))))
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(target, posixpath.dirname(artifact.path)).encode() + match[3]

    return _SVG_LINK.sub(relink, artifact.file.read_bytes())
