"""The operators on the front page: the fastest implementation of each device, and a small latency chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10

from markupsafe import Markup, escape

from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.provenance import measured_days
from kernels_bench_tools.report.rows import (
    DeviceResults,
    fastest,
    passed_rows,
    row_title,
    view_slug,
    view_title,
)
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Row
from kernels_bench_tools.text import milliseconds

_WIDTH, _HEIGHT, _MARGIN = 320, 120, 8
_MAX_WORKLOADS = 24


@dataclass(frozen=True)
class FastestInView:
    """The fastest implementation of one view."""

    title: str
    """The view's."""
    url: str
    fastest: Row | None
    baseline: str
    """Title of the baseline; empty if none ran."""
    is_baseline: bool
    """Whether the baseline is the fastest."""
    passed: int
    total: int


@dataclass(frozen=True)
class DeviceCard:
    """One device on a card."""

    device: Device
    url: str
    leads: Sequence[FastestInView]
    """The first view of each of the operator's functions."""
    views: int
    measured: str
    """Days of measurement, as printed."""


@dataclass(frozen=True)
class Card:
    """An operator on the front page."""

    devices: Sequence[DeviceCard]
    chart: Markup | None
    """Latencies in the first view of the first device."""
    caption: str
    bars: Mapping[str, int]
    """By implementation, the length of its speed-up bar in that view, in percent of the longest."""

    @property
    def lead(self) -> FastestInView | None:
        """The fastest implementation that the contents list shows."""
        return self.devices[0].leads[0] if self.devices else None


def operator_card(operator: OperatorReport, page: Page) -> Card:
    """Return the card of an operator; an empty one if it has no summary."""
    devices = [device_card(operator, device, page) for device in operator.devices]
    if not operator.views:
        return Card(devices, None, "", {})
    first = operator.views[0]
    caption = f"Latency on {first.device.name}, {view_title(first)}"
    return Card(devices, _sparkline(first, f"{operator.title}. {caption}"), caption, _bars(first))


def device_card(operator: OperatorReport, device: DeviceResults, page: Page) -> DeviceCard:
    """Return one device of an operator, with links from ``page``."""
    return DeviceCard(
        device=device.device,
        url=f"{page.url(operator.page_of(device.views[0]))}#{device.device.slug}",
        leads=[
            _lead(view, f"{page.url(operator.page_of(view))}#{view_slug(view)}") for view in device.leading
        ],
        views=len(device.views),
        measured=measured_days(row for view in device.views for row in view.rows),
    )


def _lead(view: DeviceSummary, url: str) -> FastestInView:
    first = fastest(view)
    return FastestInView(
        title=view_title(view),
        url=url,
        fastest=first,
        baseline=row_title(view, view.baseline),
        is_baseline=first is not None and first.implementation == view.baseline,
        passed=passed_rows(view),
        total=len(view.rows),
    )


def _bars(view: DeviceSummary) -> dict[str, int]:
    found = {row.implementation: row.speedup for row in view.rows if row.rank is not None and row.speedup}
    longest = max(found.values(), default=1.0)
    return {name: max(1, round(100 * value / longest)) for name, value in found.items()}


def _sparkline(view: DeviceSummary, title: str) -> Markup | None:
    """Return the latencies of a view as a small chart: a line for each row, the fastest and the baseline highlighted.

    Neither axis has numbers; latencies are on a logarithmic one. None if no row has two correct times.
    """
    step = max(1, -(-len(view.workloads) // _MAX_WORKLOADS))
    order = ["other", "base", "best"]
    lines = sorted(
        ((_line_class(view, row), _correct_times(row)[::step]) for row in view.rows),
        key=lambda line: order.index(line[0]),
    )
    times = [time for _, line in lines for time in line if time]
    if not times or len(view.workloads) < 2 or max(sum(map(bool, line)) for _, line in lines) < 2:
        return None
    low, high = log10(min(times)), log10(max(times))
    name = f"{title}: {milliseconds(min(times))} to {milliseconds(max(times))} ms, lower is better"
    head = f'<svg class="spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">'
    drawn = (_polyline(line, low, high, kind) for kind, line in lines)
    return Markup(f"{head}{''.join(drawn)}</svg>")  # noqa: S704 - numbers, and a name that is escaped


def _correct_times(row: Row) -> list[float | None]:
    return [
        point.p50_ms if point.status is Status.OK and point.p50_ms and point.p50_ms > 0 else None
        for point in row.points
    ]


def _line_class(view: DeviceSummary, row: Row) -> str:
    if row.rank == 1:
        return "best"
    return "base" if row.implementation == view.baseline else "other"


def _polyline(line: list[float | None], low: float, high: float, kind: str) -> str:
    """Return one row's line; a workload without a correct time is a gap."""
    across = (_WIDTH - 2 * _MARGIN) / max(1, len(line) - 1)
    up = (_HEIGHT - 2 * _MARGIN) / (high - low or 1)
    path, pen_up = [], True
    for number, time in enumerate(line):
        if time is None:
            pen_up = True
            continue
        x, y = _MARGIN + number * across, _HEIGHT - _MARGIN - (log10(time) - low) * up
        path.append(f"{'M' if pen_up else 'L'}{x:.0f} {y:.1f}")
        pen_up = False
    return f'<path class="{kind}" d="{"".join(path)}"/>' if path else ""
