"""What a page needs to show another number, or another axis, on a panel that was drawn for one of them.

Beside each marker stand its values on every chart, beside the panel the axes that they belong to. So a page moves
what is drawn, and needs neither another figure for each number nor a plotting library.
"""

from __future__ import annotations

import json
from typing import Any

from kernels_bench_tools.schema.summary import DeviceSummary, Estimate, Point
from kernels_bench_tools.summarize.chart.axis import (
    linear_axis,
    logarithmic_axis,
    numbers,
    reads_better_logarithmic,
)
from kernels_bench_tools.summarize.chart.spec import CHARTS, Scale
from kernels_bench_tools.summarize.chart.ticks import printable


def scales_json(view: DeviceSummary) -> str:
    """Return the scale of each of ``CHARTS`` for a view as JSON, with both of its axes; null where it has no number."""
    found = [
        _described(view, chart.scale(view), chart.name) if chart.shows(view) else None for chart in CHARTS
    ]
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def values_text(view: DeviceSummary, point: Point) -> str:
    """Return a point's value, or value, low and high, on the other charts: by spaces, charts by semicolons.

    Other charts than the first of ``CHARTS``, whose values the marker has anyway. Where a number is so much per time,
    its interval is that of the time turned over, and left out.
    """
    scales = [chart.scale(view) for chart in CHARTS[1:]]
    return ";".join(_numbers(scale.read(point), ends=not scale.per_time) for scale in scales)


def _described(view: DeviceSummary, scale: Scale, name: str) -> dict[str, Any]:
    found = numbers(view, scale)
    return {
        "name": name,
        "metric": scale.metric,
        "unit": scale.unit,
        "better": scale.better,
        "per": int(scale.per_time),
        "log": reads_better_logarithmic(scale, found),
        "axes": [
            [_short(low), _short(high), [*map(_short, ticks)]]
            for low, high, ticks in (linear_axis(found), logarithmic_axis(found))
        ],
        "lines": [[_short(line.at), printable(line.label)] for line in scale.lines(view)],
    }


def _numbers(found: Estimate | None, *, ends: bool) -> str:
    if found is None:
        return ""
    return " ".join(f"{number:.4g}" for number in (found if ends and found.known else found[:1]))


def _short(value: float) -> float:
    """Return a number that JSON writes in few letters."""
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short
