"""The charts of a summary: a figure for each metric with a chart, with a panel for each view."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib.style

from kernels_bench_tools.chart.palette import Style, assign_styles
from kernels_bench_tools.chart.panel import (
    Axis,
    axis_values,
    draw_panel,
    failed_points,
    has_axes,
    is_logarithmic,
    linear_axis,
    logarithmic_axis,
    plot_box,
    printable,
    view_title,
)
from kernels_bench_tools.chart.svg import (
    FONT,
    INK,
    Series,
    figure_svg,
    panel_group,
)
from kernels_bench_tools.records.summary import DeviceSummary, Estimate, Point, Row, Summary
from kernels_bench_tools.results.metrics import LATENCY, Metric, chart_title, view_metrics
from kernels_bench_tools.text import slugify, times, times_interval

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": FONT,
    "font.size": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def chart_svg(summary: Summary, chart: str, pages: Mapping[str, str] | None = None) -> bytes:
    """Return a chart as SVG, the same bytes for the same summary.

    Each view is a group ``panel--<chart>--<device>-<view>`` with its size in ``data-size``. Each of its rows is a group
    ``series--<slug>`` (``Row.slug``), also one without a point; its markers have ``data-workload``, ``data-value`` and
    the interval, the group ``data-metric`` and ``data-unit``. Failed workloads of an implementation that passed others
    are crosses on the x-axis, with ``data-status`` and ``data-reason``. Lines and labels link to the implementation's
    page in ``pages``, if it has one there; without ``pages`` to ``../impls/<implementation>.html``.
    """
    name = slugify(f"{summary.operator} {chart}")
    styles = _styles(summary)
    views = [view for view in summary.devices if shows(view, chart)]
    metrics = [view_metrics(view) for view in views]
    series = [
        [_series(view, row, chart, found, pages) for row in view.rows]
        for view, found in zip(views, metrics, strict=True)
    ]
    panels = [
        _panel(summary, view, found[chart], styles, f"{name}-{at}", rows)
        for at, (view, found, rows) in enumerate(zip(views, metrics, series, strict=True))
    ]
    title = chart_title(chart)
    empty = f"{summary.title}: " + (f"nothing has a {title}" if summary.devices else "no records yet")
    devices = " and ".join(dict.fromkeys(view.device.name for view in views))
    label = f"{summary.title}: {title} by workload{f' on {devices}' if devices else ''}"
    return figure_svg(f"figure--{name}", printable(label), panels, printable(empty))


def shows(view: DeviceSummary, chart: str) -> bool:
    """Return whether a chart has a panel of the view: the chart of latencies of every view, others where there is a number."""
    if chart == LATENCY.chart:
        return True
    metric = view_metrics(view)[chart]
    return any(metric.estimate(point) is not None for row in view.rows for point in row.points)


def _styles(summary: Summary) -> dict[str, Style]:
    """Return the style of each implementation, the same in every view and chart."""
    rows = [row for view in summary.devices for row in view.rows]
    return assign_styles(
        {row.implementation: row.family for row in rows},
        [{row.implementation for row in view.rows} for view in summary.devices],
        first={row.implementation for row in rows if row.baseline},
    )


def _panel(
    summary: Summary,
    view: DeviceSummary,
    metric: Metric,
    styles: Mapping[str, Style],
    prefix: str,
    series: list[Series],
) -> ET.Element:
    name = slugify(f"{summary.operator} {metric.chart}")
    key = "-".join(filter(None, (view.device.slug, view.key)))
    style = _STYLE | {"svg.hashsalt": prefix, "svg.id": prefix}
    with matplotlib.style.context(["default", style]), warnings.catch_warnings():
        # A glyph that the measuring font lacks is drawn in the reader's font.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure = draw_panel(summary.title, view, metric, styles)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    data = {
        "view": key,
        "title": view_title(view),
        "label": printable(f"{summary.title} · {view_title(view)}: {metric.title.lower()} by workload"),
    }
    if metric is LATENCY and has_axes(view):
        data["box"] = " ".join(f"{72 * edge:.6g}" for edge in plot_box(view))
        data["scales"] = scales_json(view)
    return panel_group(drawn.getvalue(), prefix, f"panel--{name}--{key}", data, series)


def scales_json(view: DeviceSummary) -> str:
    """Return each chart's metric and axes for a view as JSON, null without the view; pages redraw the panel with it."""
    metrics = view_metrics(view)
    found = [_scale(view, metric) if shows(view, chart) else None for chart, metric in metrics.items()]
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _scale(view: DeviceSummary, metric: Metric) -> dict[str, Any]:
    values = axis_values(view, metric)
    return {
        "name": metric.chart,
        "metric": metric.title,
        "unit": _unit(metric),
        "better": metric.better,
        "log": is_logarithmic(metric, values),
        "axes": [_axis(linear_axis(values)), _axis(logarithmic_axis(values))],
        "lines": [[_short(line.at), printable(line.label)] for line in metric.lines(view)],
    }


def _unit(metric: Metric) -> str:
    return "" if metric.label == metric.title else metric.unit


def _axis(axis: Axis) -> list[Any]:
    return [_short(axis.low), _short(axis.high), [*map(_short, axis.ticks)]]


def _short(value: float) -> float:
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def _series(
    view: DeviceSummary,
    row: Row,
    chart: str,
    metrics: Mapping[str, Metric],
    pages: Mapping[str, str] | None,
) -> Series:
    metric = metrics[chart]
    page = f"../impls/{row.implementation}.html" if pages is None else pages.get(row.implementation, "")
    found = [(point, metric.estimate(point)) for point in row.points] if row.passed else []
    points = []
    for at, (point, estimate) in enumerate(found):
        if estimate is not None:
            numbers = dict(zip(("value", "low", "high"), _numbers(estimate, 6), strict=False))
            points.append({"at": str(at), "workload": printable(point.workload), **numbers})
            if metric is LATENCY:
                all_numbers = (_numbers(other.estimate(point), 4) for other in metrics.values())
                points[-1]["all"] = ";".join(" ".join(numbers) for numbers in all_numbers)
    return Series(
        slug=row.slug,
        device=view.device.slug,
        title=printable(row.title),
        place=view_title(view),
        note=printable(_note(row)),
        href=page,
        metric=metric.title,
        unit=_unit(metric),
        points=points,
        failures=[_failure(point) for point in failed_points(row)],
    )


def _numbers(estimate: Estimate | None, digits: int) -> list[str]:
    """Return value, low and high, without the interval where there is none."""
    if estimate is None:
        return []
    return [f"{number:.{digits}g}" for number in (estimate if estimate.known else estimate[:1])]


def _failure(point: Point) -> dict[str, str]:
    return {
        "workload": printable(point.workload),
        "status": point.status.value,
        "reason": printable(point.reason),
    }


def _note(row: Row) -> str:
    """Return the last line of the tooltip: the overall speed-up, or why there is none."""
    if row.baseline and row.passed:
        return "baseline"
    if row.speedup is not None:
        return f"speed-up {times(row.speedup)} {times_interval(row.speedup_low, row.speedup_high)}".rstrip()
    return ": ".join(filter(None, [row.status.label, row.reason]))
