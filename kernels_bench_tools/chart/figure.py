"""The charts of a summary: a figure for each metric with a chart, with a panel for each view."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from html import escape

import matplotlib.style
from matplotlib.backends.backend_svg import FigureCanvasSVG

from kernels_bench_tools.chart.palette import Style, assign_styles
from kernels_bench_tools.chart.panel import draw_panel, failed_points, printable, view_title
from kernels_bench_tools.chart.svg import FONT, INK, Panel, Series, attributes, figure_svg, panel_svg
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Estimate, Row, Summary
from kernels_bench_tools.results.metrics import LATENCY, METRICS, Metric, chart_title, view_metrics
from kernels_bench_tools.text import slugify, times, times_interval

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": FONT,
    "font.size": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": INK,
    "grid.alpha": 0.14,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def chart_svg(summary: Summary, chart: str, pages: Mapping[str, str] | None = None) -> bytes:
    """Return a chart as SVG, the same bytes for the same summary.

    Each view is an ``<svg class="panel">`` with ``data-view`` and ``data-chart``; the chart of latencies has the panels
    of the charts without files, too. Each row of a view is a group ``series--<slug>`` (``Row.slug``), also one without a
    point; its markers have ``data-workload``, ``data-value`` and the interval. Failed workloads of an implementation
    that passed others are crosses on the x-axis, with ``data-status`` and ``data-reason``. Lines and labels link to the
    implementation's page in ``pages``, if it has one there; without ``pages`` to ``../impls/<implementation>.html``.
    """
    rows = [row for view in summary.devices for row in view.rows]
    styles = assign_styles(
        {row.implementation: row.family for row in rows},
        [{row.implementation for row in view.rows} for view in summary.devices],
        first={row.implementation for row in rows if row.baseline},
    )
    urls = {
        row.implementation: f"../impls/{row.implementation}.html"
        if pages is None
        else pages.get(row.implementation, "")
        for row in rows
    }
    charts = [chart]
    if chart == LATENCY.chart:
        charts += [metric.chart for metric in METRICS if metric.chart and not metric.file]
    panels = [
        _panel(summary, view, view_metrics(view)[name], styles, urls)
        for name in charts
        for view in summary.devices
        if shows(view, name)
    ]
    title = chart_title(chart)
    empty = f"{summary.title}: " + (f"nothing has a {title}" if summary.devices else "no records yet")
    devices = " and ".join(dict.fromkeys(view.device.name for view in summary.devices if shows(view, chart)))
    label = f"{summary.title}: {title} by workload{f' on {devices}' if devices else ''}"
    return figure_svg(printable(label), panels, printable(empty))


def shows(view: DeviceSummary, chart: str) -> bool:
    """Return whether a chart has a panel of the view: the chart of latencies of every view, others where there is a number."""
    if chart == LATENCY.chart:
        return True
    metric = view_metrics(view)[chart]
    return any(metric.estimate(point) is not None for row in view.rows for point in row.points)


def _panel(
    summary: Summary,
    view: DeviceSummary,
    metric: Metric,
    styles: Mapping[str, Style],
    urls: Mapping[str, str],
) -> Panel:
    key = "-".join(filter(None, (view.device.slug, view.key)))
    # matplotlib makes the ids of markers from it, and a page has many panels.
    salt = f"{slugify(summary.operator)} {metric.chart} {key}"
    with (
        matplotlib.style.context(["default", _STYLE | {"svg.hashsalt": salt}]),
        warnings.catch_warnings(),
    ):
        # A glyph that the measuring font lacks is drawn in the reader's font.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure = draw_panel(summary.title, view, metric, styles, urls)
        drawn = io.StringIO()
        # savefig() would draw twice.
        FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None, "Creator": None})
    title = view_title(view)
    tags = attributes(
        view=key,
        chart=metric.chart,
        title=title,
        metric=metric.title,
        unit="" if metric.label == metric.title else metric.unit,
    )
    label = printable(f"{summary.title} · {title}: {metric.title.lower()} by workload")
    series = {row.slug: _series(view, row, metric) for row in view.rows}
    return panel_svg(drawn.getvalue(), f'aria-label="{escape(label)}"{tags}', series)


def _series(view: DeviceSummary, row: Row, metric: Metric) -> Series:
    title = printable(row.title)
    found = [(point, metric.estimate(point)) for point in row.points] if row.passed else []
    return Series(
        label=f"{title} on {view_title(view)}",
        data=attributes(title=title, note=printable(_note(row))),
        points=[
            attributes(
                workload=printable(point.workload),
                **_numbers(estimate),
                status="" if point.status is Status.OK else point.status.value,
            )
            for point, estimate in found
            if estimate is not None
        ],
        failures=[
            attributes(
                workload=printable(point.workload), status=point.status.value, reason=printable(point.reason)
            )
            for point in failed_points(row)
        ],
    )


def _numbers(estimate: Estimate) -> dict[str, str]:
    names = ("value", "low", "high") if estimate.known else ("value",)
    return {name: f"{number:.6g}" for name, number in zip(names, estimate, strict=False)}


def _note(row: Row) -> str:
    """Return the last line of the tooltip: the overall speed-up, or why there is none."""
    if row.baseline and row.passed:
        return "baseline"
    if row.speedup is not None:
        return f"speed-up {times(row.speedup)} {times_interval(row.speedup_low, row.speedup_high)}".rstrip()
    return ": ".join(filter(None, [row.status.label, row.reason]))
