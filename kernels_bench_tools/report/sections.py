"""The sections of operator and implementation pages: devices, their views, and the implementations in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from markupsafe import Markup

from kernels_bench_tools.report.artifacts import ArtifactPreview, figure_preview, image, link
from kernels_bench_tools.report.chart import ChartPanel
from kernels_bench_tools.report.labels import Label, status_label
from kernels_bench_tools.report.operators import OperatorReport, implementation_id, notebook_title
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import operator_records, page_path
from kernels_bench_tools.report.provenance import measured_days
from kernels_bench_tools.report.rows import (
    DeviceResults,
    fastest,
    passed_rows,
    row_title,
    view_slug,
    view_title,
)
from kernels_bench_tools.schema.build import NotebookRun
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Row

GiveId = Callable[[str], str]
"""Reserves an id on the page and returns it, with a number if it is in use."""


@dataclass(frozen=True)
class ViewSection:
    """A view of a device."""

    id: str
    """Anchor of the view; the device's for its first view."""
    url: str
    title: str
    summary: DeviceSummary
    baseline: str
    """Title of the baseline; empty if there is none."""
    fastest: Row | None
    passed: int
    """Implementations that passed all of the view's workloads."""
    chart: Markup | None
    """The view's panel of the latency chart."""

    @property
    def is_baseline_fastest(self) -> bool:
        """Whether the baseline has rank 1."""
        return self.fastest is not None and self.fastest.implementation == self.summary.baseline


@dataclass(frozen=True)
class DeviceSection:
    """A device and its views."""

    id: str
    url: str
    results: DeviceResults
    views: Sequence[ViewSection]

    @property
    def device(self) -> Device:
        """The device."""
        return self.results.device

    @property
    def leading(self) -> list[ViewSection]:
        """The first view of each of the operator's functions."""
        return [view for view in self.views if any(view.summary is one for one in self.results.leading)]

    @property
    def measured(self) -> str:
        """Days of measurement, as printed."""
        return measured_days(row for view in self.results.views for row in view.rows)

    @property
    def baselines(self) -> list[str]:
        """Titles of the views' baselines, each once."""
        return list(dict.fromkeys(view.baseline for view in self.views if view.baseline))


@dataclass(frozen=True)
class Standing:
    """One implementation on one device, over all of its views."""

    rows: Sequence[tuple[DeviceSummary, Row]]

    @property
    def best(self) -> tuple[DeviceSummary, Row] | None:
        """The first view in which it has a rank."""
        return next(((view, row) for view, row in self.rows if row.rank is not None), None)

    @property
    def failed(self) -> list[Row]:
        """Its rows in the views in which it did not pass all workloads."""
        return [row for _, row in self.rows if row.status is not Status.OK]

    @property
    def label(self) -> str:
        """Title of the best view; empty for the device's first, which is named in the table's header."""
        return view_title(self.best[0]) if self.best and self.best[0].key else ""


@dataclass(frozen=True)
class ImplementationEntry:
    """An implementation in a table of implementations."""

    id: str
    title: str
    description: str
    url: str
    """Empty if the project no longer has its notebook."""
    standings: Sequence[Standing]
    """One for each of the operator's devices."""
    status: Label
    """Status of its cells, for operators without a summary."""
    reason: str


@dataclass(frozen=True)
class OperatorSection:
    """An operator on a page."""

    id: str
    """Id of its heading."""
    title: str
    description: str
    url: str
    problem: str
    """Why there is no summary; empty if there is one."""
    combined: Sequence[tuple[str, str]]
    """Title and URL of each combine notebook's page."""
    devices: Sequence[DeviceSection]
    implementations: Sequence[ImplementationEntry]
    urls: Mapping[str, str]
    """Page of each implementation that has one."""
    stale: Set[str]
    """Slugs of the rows whose cells changed after they were measured."""
    chart: ArtifactPreview | None = None
    """The latency chart; on the operator's page, each panel is shown in its view's section."""
    other_panels: Sequence[ChartPanel] = ()
    """Panels of the chart that belong to no view."""
    figures: Sequence[ArtifactPreview] = ()
    """The other figures, as images."""
    downloads: Sequence[ArtifactPreview] = ()

    @property
    def views(self) -> list[ViewSection]:
        """The views of all devices."""
        return [view for device in self.devices for view in device.views]


def operator_section(operator: OperatorReport, page: Page) -> OperatorSection:
    """Return an operator on one of its own pages, with its charts and downloads."""
    heading = page.heading_id(operator.title)
    chart = operator.chart
    elsewhere = {view_slug(view) for view in operator.views if operator.page_of(view) != page.path}
    # The file is written together with the page, so its size is not known yet.
    records = ArtifactPreview(
        "records.jsonl", page.url(operator_records(operator.folder)), "all records", "file"
    )
    shown = figure_preview(chart, page, elsewhere) if chart else None
    if shown is not None:
        shown = replace(shown, data=[*shown.data, records])
    charts = {panel.view: panel.figure for panel in shown.panels} if shown else {}
    if shown and shown.figure is not None and len(operator.views) == 1:
        charts[view_slug(operator.views[0])] = shown.figure
    known = {view_slug(view) for view in operator.views}
    return replace(
        _section(operator, operator.on(page.path), page, heading, page.unique_id, charts),
        chart=shown,
        other_panels=[panel for panel in shown.panels if panel.view not in known] if shown else [],
        figures=[image(figure, page) for figure in operator.figures if figure is not chart],
        downloads=[*(link(artifact, page) for artifact in operator.artifacts), records],
    )


def front_section(operator: OperatorReport, page: Page) -> OperatorSection:
    """Return an operator on the front page: its implementations, without charts and downloads."""
    return _section(operator, operator, page, page.heading_id(operator.title), str, {})


def _section(
    operator: OperatorReport,
    shown: OperatorReport,
    page: Page,
    heading: str,
    give_id: GiveId,
    charts: Mapping[str, Markup],
) -> OperatorSection:
    """Return an operator with those of its views that ``shown`` has."""
    urls = implementation_urls(operator, page)
    return OperatorSection(
        id=heading,
        title=operator.title,
        description=operator.description,
        url=page.url(operator.page),
        problem=operator.problem,
        combined=[(notebook_title(one), page.url(page_path(one.path))) for one in operator.combined],
        devices=[device_section(operator, device, page, give_id, charts) for device in shown.devices],
        implementations=list(_implementations(shown, urls)),
        urls=urls,
        stale={row.slug for view in shown.views for row in view.rows if operator.is_stale(row)},
    )


def implementation_urls(operator: OperatorReport, page: Page) -> dict[str, str]:
    """Return the URL of each implementation's page."""
    return {implementation_id(one): page.url(page_path(one.path)) for one in operator.implementations}


def device_section(
    operator: OperatorReport,
    device: DeviceResults,
    page: Page,
    give_id: GiveId = str,
    charts: Mapping[str, Markup] = MappingProxyType({}),
) -> DeviceSection:
    """Return the results of a device.

    Args:
        operator: The operator that they are of.
        device: The results.
        page: The page that shows them.
        give_id: Reserves the ids of the sections.
        charts: Panels of the latency chart by the slugs of their views.
    """
    identifier = give_id(device.device.slug)

    def url(view: DeviceSummary, anchor: str) -> str:
        return f"{page.url(operator.page_of(view))}#{anchor}"

    views = [
        ViewSection(
            id=give_id(view_slug(view)) if view.key else identifier,
            url=url(view, view_slug(view)),
            title=view_title(view),
            summary=view,
            baseline=row_title(view, view.baseline),
            fastest=fastest(view),
            passed=passed_rows(view),
            chart=charts.get(view_slug(view)),
        )
        for view in device.views
    ]
    return DeviceSection(identifier, url(device.views[0], device.device.slug), device, views)


def _implementations(operator: OperatorReport, urls: Mapping[str, str]) -> Iterator[ImplementationEntry]:
    """Yield every implementation: the fastest of the first view first, those without results last."""
    for name in _in_order(operator):
        rows = operator.rows(name)
        notebook = operator.notebook(name)
        row = rows[0][1] if rows else None
        status, reason = _cell_status(notebook)
        yield ImplementationEntry(
            id=name,
            title=row.title if row else notebook_title(notebook) if notebook else name,
            description=notebook.front.description if notebook else row.description if row else "",
            url=urls.get(name, ""),
            standings=[
                Standing([(view, row) for view, row in rows if view.device.slug == device.device.slug])
                for device in operator.devices
            ],
            status=status,
            reason=reason,
        )


def _in_order(operator: OperatorReport) -> Iterable[str]:
    rows = [row for view in operator.views for row in view.rows]
    ranked = [row.implementation for row in rows if row.rank is not None]
    measured = [row.implementation for row in rows]
    return dict.fromkeys([*ranked, *measured, *map(implementation_id, operator.implementations)])


def _cell_status(notebook: NotebookRun | None) -> tuple[Label, str]:
    """Return status and reason of the first cell that failed, else of the first cell."""
    cells = [cell for cell in notebook.cells if not cell.commented] if notebook else []
    if not cells:
        return status_label(None), ""
    shown = next((cell for cell in cells if cell.status is not None and not cell.status.ran), cells[0])
    return status_label(shown.status), shown.reason


@dataclass(frozen=True)
class RowSection:
    """One implementation in one view."""

    id: str
    title: str
    view: DeviceSummary
    row: Row


@dataclass(frozen=True)
class ImplementationSection:
    """One implementation on one device: its row in each view."""

    id: str
    device: Device
    views: Sequence[RowSection]

    @property
    def environment_row(self) -> Row:
        """The row whose environment is shown: the first that ran, else the first."""
        rows = [section.row for section in self.views]
        return next((row for row in rows if any(point.status.ran for point in row.points)), rows[0])

    @property
    def peaks(self) -> Mapping[str, float]:
        """Measured peaks of the device in GB/s or TFLOP/s."""
        return next((section.view.ceilings for section in self.views if section.view.ceilings), {})


def implementation_sections(
    rows: Sequence[tuple[DeviceSummary, Row]], give_id: GiveId
) -> list[ImplementationSection]:
    """Return an implementation's rows by device, given its rows view by view."""
    found: dict[str, list[tuple[DeviceSummary, Row]]] = {}
    for view, row in rows:
        found.setdefault(view.device.slug, []).append((view, row))
    sections = []
    for pairs in found.values():
        device = pairs[0][0].device
        identifier = give_id(device.slug)
        views = [
            RowSection(give_id(view_slug(view)) if view.key else identifier, view_title(view), view, row)
            for view, row in pairs
        ]
        sections.append(ImplementationSection(identifier, device, views))
    return sections
