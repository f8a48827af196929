"""An operator's results as pages show them: device by device, view by view, and in a line for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kernels_bench_tools.report.device_rows import (
    DeviceViews,
    computes,
    fastest,
    passing,
    row_title,
    view_slug,
    view_title,
)
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Row

GiveId = Callable[[str], str]
"""Gives out the id of a section for the slug that it would have."""


@dataclass(frozen=True)
class ViewSection:
    """A view of a device, with what a page says of it."""

    id: str
    """Anchor of the view; its device's for the first view."""
    title: str
    """What it is called among the device's views; empty for an only view without named sets."""
    summary: DeviceSummary
    baseline: str
    """Title of the implementation that divides the speed-ups; empty if there is none."""
    fastest: Row | None
    passed: int
    """Implementations that are right on all of the view's workloads."""
    computes: bool
    """Whether arithmetic bounds it, not memory."""
    chart: Markup | None = None
    """The panel of the figure of latencies that shows this view."""


@dataclass(frozen=True)
class DeviceSection:
    """A device and its views."""

    id: str
    device: Device
    views: Sequence[ViewSection]
    summaries: DeviceViews

    @property
    def leading(self) -> list[ViewSection]:
        """The first view of each of the operator's functions: what one line of the front page speaks of."""
        return [view for view in self.views if any(view.summary is first for first in self.summaries.groups)]

    @property
    def baselines(self) -> list[str]:
        """Titles of the implementations that divide the speed-ups, each once."""
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
    def failed(self) -> tuple[DeviceSummary, Row] | None:
        """The first view in which it is not right on all workloads."""
        return next(((view, row) for view, row in self.rows if row.status is not Status.OK), None)

    @property
    def failures(self) -> int:
        """The number of views in which it is not right on all workloads."""
        return sum(row.status is not Status.OK for _, row in self.rows)

    @property
    def label(self) -> str:
        """The view that ``best`` is of; empty for the device's first, of which the table's head speaks."""
        return view_title(self.best[0]) if self.best and self.best[0].key else ""


def device_sections(
    devices: Sequence[DeviceViews], give_id: GiveId, charts: Mapping[str, Markup]
) -> list[DeviceSection]:
    """Return the sections of an operator's devices.

    Args:
        devices: What is known.
        give_id: Gives ``<device>``, and ``<device>-<key>`` for each view that has a key.
        charts: Panels of the figure of latencies by the slugs of their views.
    """
    sections = []
    for device in devices:
        identifier = give_id(device.device.slug)
        views = [
            _view(view, give_id(view_slug(view)) if view.key else identifier, charts) for view in device.views
        ]
        sections.append(DeviceSection(identifier, device.device, views, device))
    return sections


def _view(view: DeviceSummary, identifier: str, charts: Mapping[str, Markup]) -> ViewSection:
    return ViewSection(
        id=identifier,
        title=view_title(view),
        summary=view,
        baseline=row_title(view, view.baseline),
        fastest=fastest(view),
        passed=passing(view),
        computes=computes(view),
        chart=charts.get(view_slug(view)),
    )


def standings(devices: Sequence[DeviceViews], implementation: str) -> list[Standing]:
    """Return where an implementation stands on each device."""
    return [
        Standing(
            [
                (view, row)
                for view in device.views
                for row in view.rows
                if row.implementation == implementation
            ]
        )
        for device in devices
    ]


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
    def origin(self) -> Row:
        """The row that tells best with what it was measured: one that ran, if there is one."""
        rows = [section.row for section in self.views]
        return next((row for row in rows if any(point.status.ran for point in row.points)), rows[0])

    @property
    def ceilings(self) -> Mapping[str, float]:
        """What the device reached, GB/s or TFLOP/s."""
        return next((section.view.ceilings for section in self.views if section.view.ceilings), {})


def implementation_sections(
    rows: Sequence[tuple[DeviceSummary, Row]], give_id: GiveId
) -> list[ImplementationSection]:
    """Return what is known of an implementation by device, given its rows view by view."""
    found: dict[str, list[tuple[DeviceSummary, Row]]] = {}
    for view, row in rows:
        found.setdefault(view.device.slug, []).append((view, row))
    sections = []
    for pairs in found.values():
        identifier = give_id(pairs[0][0].device.slug)
        views = [
            RowSection(give_id(view_slug(view)) if view.key else identifier, view_title(view), view, row)
            for view, row in pairs
        ]
        sections.append(ImplementationSection(identifier, pairs[0][0].device, views))
    return sections
