"""Artifacts as pages show them: a figure, an image, a table or a link."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from kernels_bench_tools.publish.artifacts import Artifact, CsvTable, inline_figure, read_csv
from kernels_bench_tools.publish.page import Page
from kernels_bench_tools.publish.svg import SeriesName

_IMAGES = {"png", "jpg", "jpeg", "gif", "webp"}


@dataclass(frozen=True)
class ArtifactView:
    """An artifact as a page shows it."""

    name: str
    url: str
    """Empty if the file is missing."""
    size: str
    kind: str
    """``figure``, ``image``, ``table`` or ``file``."""
    figure: Markup | None = None
    table: CsvTable | None = None


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
    figure = table = None
    kind = "image" if artifact.suffix in _IMAGES else "file"
    if artifact.suffix == "svg":
        figure = inline_figure(artifact, page, names)
        # As an image it can do no harm, whatever it holds.
        kind = "image" if figure is None else "figure"
    elif artifact.suffix == "csv":
        try:
            kind, table = "table", read_csv(artifact.file)
        except csv.Error:
            kind = "file"
    return ArtifactView(view.name, view.url, view.size, kind, figure, table)
