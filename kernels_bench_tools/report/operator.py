"""What a page shows of an operator: its figures, its downloads and who implements it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest

from markupsafe import Markup

from kernels_bench_tools.report.device_rows import view_slug
from kernels_bench_tools.report.operators import Operator, implementation_id, notebook_title
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.report.previews import ArtifactView, PanelView, figure_preview, image, link
from kernels_bench_tools.report.prose import OPERATORS, Heading, Html, Part, Placeholder
from kernels_bench_tools.report.results import (
    DeviceSection,
    GiveId,
    Standing,
    ViewSection,
    device_sections,
    standings,
)
from kernels_bench_tools.report.site_paths import operator_records
from kernels_bench_tools.report.words import Mark, status_mark
from kernels_bench_tools.schema.build import NotebookRun


@dataclass(frozen=True)
class ImplementationView:
    """An implementation in a table."""

    id: str
    title: str
    description: str
    url: str
    """Empty if the project no longer has its notebook."""
    standings: Sequence[Standing]
    """Where it stands on each of the operator's devices."""
    mark: Mark
    reason: str
    """How its cells ended, for when there is no summary."""


@dataclass(frozen=True)
class OperatorView:
    """An operator as a page shows it."""

    id: str
    """Of its heading."""
    title: str
    description: str
    url: str
    combined: Sequence[tuple[str, str]]
    """Title and URL of each combine notebook's page."""
    chart: ArtifactView | None
    """The figure of latencies; on the operator's page, its panels stand with the views that they show."""
    loose: Sequence[PanelView]
    """Panels that no view claims."""
    figures: Sequence[ArtifactView]
    """The other figures, as images."""
    downloads: Sequence[ArtifactView]
    devices: Sequence[DeviceSection]
    implementations: Sequence[ImplementationView]
    urls: Mapping[str, str]
    """Page of each implementation that has one."""
    outdated: Set[str]
    """Slugs of the rows whose cells have other code now."""
    problem: str

    @property
    def views(self) -> list[ViewSection]:
        """The views of all devices."""
        return [view for device in self.devices for view in device.views]


def operator_view(operator: Operator, page: Page, paths: SitePaths) -> OperatorView:
    """Return what one of an operator's own pages shows of it."""
    heading = page.heading_id(operator.title)
    chart = operator.chart
    elsewhere = {
        row.slug for view in operator.views if operator.page_of(view) != page.path for row in view.rows
    }
    shown = figure_preview(chart, page, operator.names, elsewhere) if chart else None
    records = _records(operator, page)
    if shown is not None:
        shown = replace(shown, data=[*shown.data, records])
    charts = {panel.key: panel.figure for panel in shown.panels} if shown else {}
    if shown and shown.figure is not None and len(operator.views) == 1:
        charts[view_slug(operator.views[0])] = shown.figure
    known = {view_slug(view) for view in operator.views}
    view = _operator_view(operator.on(page.path), page, paths, heading, page.unique_id, charts)
    return replace(
        view,
        chart=shown,
        loose=[panel for panel in shown.panels if panel.key not in known] if shown else [],
        figures=[image(figure, page) for figure in operator.figures if figure is not chart],
        downloads=[*(link(artifact, page) for artifact in operator.artifacts), records],
    )


def _records(operator: Operator, page: Page) -> ArtifactView:
    """Return the file of all records as a page links to it; it is made with the page, so its size is not known yet."""
    return ArtifactView("records.jsonl", page.url(operator_records(operator.folder)), "every record", "file")


def operator_preview(operator: Operator, page: Page, paths: SitePaths) -> OperatorView:
    """Return what the front page shows of an operator beside its card: who implements it, and how each stands."""
    return _operator_view(operator, page, paths, page.heading_id(operator.title), str, {})


def _operator_view(
    operator: Operator,
    page: Page,
    paths: SitePaths,
    heading: str,
    give_id: GiveId,
    charts: Mapping[str, Markup],
) -> OperatorView:
    urls = {
        implementation_id(notebook): page.url(paths.pages[notebook.path])
        for notebook in operator.implementations
    }
    return OperatorView(
        id=heading,
        title=operator.title,
        description=operator.description,
        url=page.url(operator.page),
        combined=[
            (notebook_title(notebook), page.url(paths.pages[notebook.path])) for notebook in operator.combined
        ],
        chart=None,
        loose=[],
        figures=[],
        downloads=[],
        devices=device_sections(operator.devices, give_id, charts),
        implementations=list(_implementations(operator, urls)),
        urls=urls,
        outdated={row.slug for view in operator.views for row in view.rows if operator.has_changed(row)},
        problem=operator.problem,
    )


def contents(parts: Sequence[Part], operators: Sequence[OperatorView]) -> list[Heading]:
    """Return the front page's chapters in their order, without the heading of the contents themselves."""
    chapters: list[Heading] = []
    sections = [Heading(operator.id, operator.title) for operator in operators]
    placed = False
    for part, after in zip_longest(parts, parts[1:]):
        if isinstance(part, Html) and part.heading and after != Placeholder("contents"):
            chapters.append(part.heading)
        elif part == Placeholder(OPERATORS):
            chapters += sections
            placed = True
    return chapters if placed else chapters + sections


def _implementations(operator: Operator, urls: Mapping[str, str]) -> Iterator[ImplementationView]:
    """Yield every implementation: the fastest of the first view first, those without results last."""
    devices = operator.devices
    for name in _in_order(operator):
        standing = standings(devices, name)
        notebook = operator.notebook(name)
        row = next((row for one in standing for _, row in one.rows), None)
        end = _worst(notebook)
        yield ImplementationView(
            id=name,
            title=row.title if row else notebook_title(notebook) if notebook else name,
            description=notebook.front.description if notebook else row.description if row else "",
            url=urls.get(name, ""),
            standings=standing,
            mark=end[0],
            reason=end[1],
        )


def _in_order(operator: Operator) -> Iterable[str]:
    """Return the implementations that have a rank somewhere before those that have none."""
    rows = [row for view in operator.views for row in view.rows]
    able = [row.implementation for row in rows if row.rank is not None]
    known = [row.implementation for row in rows]
    return dict.fromkeys([*able, *known, *map(implementation_id, operator.implementations)])


def _worst(notebook: NotebookRun | None) -> tuple[Mark, str]:
    """Return how the first cell that did not end well ended, else how the first one did."""
    cells = [cell for cell in notebook.cells if not cell.commented] if notebook else []
    if not cells:
        return status_mark(None), ""
    bad = next((cell for cell in cells if cell.status is not None and not cell.status.ran), cells[0])
    return status_mark(bad.status), bad.reason
