"""The front page's cards: of each operator what decides in ten seconds, and a bar for every implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kernels_bench_tools.report.dates import day_range, days
from kernels_bench_tools.report.device_rows import (
    DeviceViews,
    fastest,
    passing,
    row_title,
    view_slug,
    view_title,
)
from kernels_bench_tools.report.operators import Operator
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.sparklines import latency_sparkline
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.summary import DeviceSummary, Row


@dataclass(frozen=True)
class Lead:
    """The winner of one view."""

    title: str
    """The view's."""
    url: str
    fastest: Row | None
    baseline: str
    """Title of the implementation that divides the speed-ups; empty if none ran."""
    is_baseline: bool
    """Whether nothing is faster than the baseline."""
    passed: int
    total: int


@dataclass(frozen=True)
class DeviceCard:
    """What a card says of one device."""

    device: Device
    url: str
    leads: Sequence[Lead]
    """The first view of each of the operator's functions."""
    views: int
    measured: str
    """Days, as printed."""


@dataclass(frozen=True)
class Card:
    """An operator on the front page."""

    devices: Sequence[DeviceCard]
    spark: Markup | None
    """Latencies in the first view of the first device."""
    caption: str
    """What ``spark`` shows."""
    bars: Mapping[str, int]
    """Implementation to the length of its speed-up in that view, in percent of the longest."""

    @property
    def lead(self) -> Lead | None:
        """The winner that a line of the contents speaks of."""
        return self.devices[0].leads[0] if self.devices else None


def operator_card(operator: Operator, page: Page) -> Card:
    """Return the card of an operator; an empty one if it has no summary."""
    devices = [_device_card(operator, device, page) for device in operator.devices]
    if not operator.views:
        return Card(devices, None, "", {})
    first = operator.views[0]
    caption = f"Latency on {first.device.name}, {view_title(first)}"
    return Card(devices, latency_sparkline(first, f"{operator.title}. {caption}"), caption, _bars(first))


def _device_card(operator: Operator, device: DeviceViews, page: Page) -> DeviceCard:
    return DeviceCard(
        device=device.device,
        url=f"{page.url(operator.page_of(device.views[0]))}#{device.device.slug}",
        leads=[
            _lead(view, f"{page.url(operator.page_of(view))}#{view_slug(view)}") for view in device.groups
        ],
        views=len(device.views),
        measured=day_range(days(row for view in device.views for row in view.rows)),
    )


def _lead(view: DeviceSummary, url: str) -> Lead:
    first = fastest(view)
    return Lead(
        title=view_title(view),
        url=url,
        fastest=first,
        baseline=row_title(view, view.baseline),
        is_baseline=first is not None and first.implementation == view.baseline,
        passed=passing(view),
        total=len(view.rows),
    )


def _bars(view: DeviceSummary) -> dict[str, int]:
    found = {row.implementation: row.speedup for row in view.rows if row.rank is not None and row.speedup}
    longest = max(found.values(), default=1.0)
    return {name: max(1, round(100 * value / longest)) for name, value in found.items()}
