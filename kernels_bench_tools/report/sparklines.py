"""Small charts without axes: latencies of a view."""

from __future__ import annotations

from math import log10

from markupsafe import Markup, escape

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Row
from kernels_bench_tools.text import milliseconds

_WIDTH, _HEIGHT, _MARGIN = 320, 120, 8
_MAX_WORKLOADS = 24


def latency_sparkline(view: DeviceSummary, title: str) -> Markup | None:
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
