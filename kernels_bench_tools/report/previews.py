"""Artifacts as pages show them: a figure, an image, a table, text or a link."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from markupsafe import Markup

from kernels_bench_tools.report.artifacts import (
    Artifact,
    CsvTable,
    figure_elements,
    read_csv,
)
from kernels_bench_tools.report.chart.svg import Panel, SeriesName
from kernels_bench_tools.report.page import Links, Page

_SVG_LINK = re.compile(rb'(<a\b[^>]*?\bhref=")([^"#:?]+)(")')
MAX_TEXT = 100_000
"""Bytes of a Markdown file that a page shows; a longer one is linked to."""
_IMAGES = {"png", "jpg", "jpeg", "gif", "webp"}


@dataclass(frozen=True)
class PanelView:
    """One panel of a figure."""

    key: str
    """The slug of the view that it shows; that of its first series if no summary speaks of it."""
    title: str
    figure: Markup


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
    """The figure as a whole."""
    panels: Sequence[PanelView] = ()
    """The figure's panels, where it can be cut; then ``figure`` is None."""
    table: CsvTable | None = None
    text: Markup | None = None
    """Of Markdown: what it says."""
    data: Sequence[ArtifactView] = ()
    """Of a figure: the data that it was drawn from, to download."""


def missing(name: str) -> ArtifactView:
    """Return an artifact that a notebook speaks of and no cell left."""
    return ArtifactView(name, "", "", "file")


def link(artifact: Artifact, page: Page) -> ArtifactView:
    """Return an artifact to be linked to."""
    return ArtifactView(
        artifact.name, page.url(artifact.path) if artifact.exists else "", artifact.size, "file"
    )


def preview(artifact: Artifact, page: Page, names: Mapping[str, SeriesName]) -> ArtifactView:
    """Return an artifact to be looked at, if it is of a kind that can be."""
    view = link(artifact, page)
    if not artifact.exists:
        return view
    if artifact.suffix in _IMAGES:
        return replace(view, kind="image")
    if artifact.suffix == "svg":
        return figure_preview(artifact, page, names)
    if artifact.suffix == "csv":
        try:
            return replace(view, kind="table", table=read_csv(artifact.file))
        except csv.Error:
            return view
    if artifact.suffix == "md" and artifact.file.stat().st_size <= MAX_TEXT:
        return replace(view, kind="text", text=_text(artifact))
    return view


def _text(artifact: Artifact) -> Markup:
    from kernels_bench_tools.report.markup import render_markdown  # few pages show any

    return render_markdown(
        artifact.file.read_text(encoding="utf-8", errors="replace").replace("\0", "\ufffd")
    )


def figure_preview(
    artifact: Artifact, page: Page, names: Mapping[str, SeriesName], elsewhere: Set[str] = frozenset()
) -> ArtifactView:
    """Return a figure to be looked at: its panels, or all of it if it cannot be cut.

    Panels of series that are shown ``elsewhere``, by their slugs, are left out.
    """
    view = replace(
        link(artifact, page), data=[link(beside, page) for beside in artifact.data if beside.exists]
    )
    panels, figure = figure_elements(artifact, page, names, elsewhere)
    if panels:
        return replace(view, kind="figure", panels=[_panel(panel, names) for panel in panels])
    # As an image it can do no harm, whatever it holds.
    return replace(view, kind="image" if figure is None else "figure", figure=figure)


def image(artifact: Artifact, page: Page) -> ArtifactView:
    """Return a figure as an image: nothing answers to the pointer, and the page stays light."""
    return replace(link(artifact, page), kind="image")


def _panel(panel: Panel, names: Mapping[str, SeriesName]) -> PanelView:
    name = names.get(panel.series)
    return PanelView(
        name.panel if name else panel.series, name.device if name else panel.series, panel.figure
    )


def relinked(artifact: Artifact, links: Links) -> bytes:
    """Return a figure whose links work from where the site keeps it, not from its notebook's page."""
    folder = posixpath.dirname(artifact.notebook)

    def relink(match: re.Match[bytes]) -> bytes:
        target = links.find(posixpath.normpath(posixpath.join(folder, match[2].decode(errors="replace"))))
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(target, posixpath.dirname(artifact.path)).encode() + match[3]

    return _SVG_LINK.sub(relink, artifact.file.read_bytes())
