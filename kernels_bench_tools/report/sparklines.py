"""Small charts drawn from a summary alone, for where the whole figure would be too much."""

from __future__ import annotations

from math import log10

from markupsafe import Markup, escape

from kernels_bench_tools.report.format import milliseconds
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Row

WIDTH, HEIGHT = 320, 120
_MARGIN = 8


def latency_sparkline(view: DeviceSummary, title: str, most: int = 24) -> Markup | None:
    """Return the latencies of a view as a drawing: a line for each row, the fastest and the baseline set off.

    Both axes are without numbers, and the upright one is logarithmic; the drawing's name says how far it goes. None if
    no row has two right times.

    Args:
        view: What to draw.
        title: What it is of, for who cannot see it.
        most: Workloads to draw at most, spread over all of them.
    """
    step = max(1, -(-len(view.workloads) // most))
    lines = {row.slug: _right_times(row)[::step] for row in view.rows}
    times = [time for line in lines.values() for time in line if time]
    if not times or max(len(line) for line in lines.values()) < 2:
        return None
    low, high = log10(min(times)), log10(max(times))
    drawn = [
        _polyline(lines[row.slug], low, high, _kind(view, row))
        for row in _from_back_to_front(view, view.rows)
    ]
    name = f"{title}: {milliseconds(min(times))} to {milliseconds(max(times))} ms, lower is better"
    head = f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">'
    return Markup(head + "".join(drawn) + "</svg>")  # noqa: S704 - numbers, and a name that was escaped


def _right_times(row: Row) -> list[float | None]:
    return [
        point.p50_ms if point.status is Status.OK and point.p50_ms and point.p50_ms > 0 else None
        for point in row.points
    ]


def _kind(view: DeviceSummary, row: Row) -> str:
    if row.rank == 1:
        return "best"
    return "base" if row.implementation == view.baseline else "other"


def _from_back_to_front(view: DeviceSummary, rows: list[Row]) -> list[Row]:
    order = ["other", "base", "best"]
    return sorted(rows, key=lambda row: order.index(_kind(view, row)))


def _polyline(line: list[float | None], low: float, high: float, kind: str) -> str:
    """Return one row's line; a workload without a right time is a gap."""
    across = (WIDTH - 2 * _MARGIN) / max(1, len(line) - 1)
    up = (HEIGHT - 2 * _MARGIN) / (high - low or 1)
    path, pen_up = [], True
    for number, time in enumerate(line):
        if time is None:
            pen_up = True
            continue
        x, y = _MARGIN + number * across, HEIGHT - _MARGIN - (log10(time) - low) * up
        path.append(f"{'M' if pen_up else 'L'}{x:.0f} {y:.1f}")
        pen_up = False
    return f'<path class="{kind}" d="{"".join(path)}"/>' if path else ""
