"""Charts of a summary: one figure for all devices, a panel for each of their views."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence

import matplotlib.style
from matplotlib.figure import Figure

from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Estimate, Point, Row, Summary
from kernels_bench_tools.summarize.chart.lines import failures
from kernels_bench_tools.summarize.chart.palette import Style, assign_styles
from kernels_bench_tools.summarize.chart.panel import (
    GAP,
    WIDTH,
    draw_panel,
    has_axes,
    panel_height,
    panel_id,
    place_of,
    plot_box,
)
from kernels_bench_tools.summarize.chart.spec import Chart
from kernels_bench_tools.summarize.chart.svg import FONT, INK, Panel, Series, finish_svg
from kernels_bench_tools.summarize.chart.switching import scales_json, values_text
from kernels_bench_tools.summarize.chart.ticks import printable
from kernels_bench_tools.text import slugify

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
_EMPTY_HEIGHT = 1.0


def chart_svg(summary: Summary, chart: Chart, pages: Mapping[str, str] | None = None) -> bytes:
    """Return a chart as SVG, the same bytes for the same summary.

    Each row of each view is a group ``series--<slug>`` (``Row.slug``), also one without a point; its
    markers carry ``data-workload``, ``data-value`` and the interval, the group ``data-metric`` and
    ``data-unit``. Failed workloads of an implementation that passed others are crosses on the x-axis, with
    ``data-status`` and ``data-reason``.

    Args:
        summary: What to draw.
        chart: Which number of it.
        pages: Implementation id to the URL of its page, for the links; without an entry there is no link.
            None links each to ``../impls/<implementation>.html``.

    Raises:
        RecordError: Two implementations of a device have the same slug.
    """
    name = slugify(f"{summary.operator} {chart.name}")
    styles = _styles(summary)
    views = [view for view in summary.devices if chart.shows(view)]
    heights = [panel_height(view) for view in views]
    style = _STYLE | {"svg.hashsalt": name, "svg.id": name}
    with matplotlib.style.context(["default", style]), warnings.catch_warnings():
        # A glyph that the measuring font lacks is drawn by the reader's.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure = Figure(figsize=(WIDTH, max(sum(heights) + GAP * (len(views) - 1), _EMPTY_HEIGHT)))
        if not views:
            figure.text(0.5, 0.5, printable(_nothing(summary, chart)), ha="center", va="center")
        panels, top = [], 0.0
        for view, height in zip(views, heights, strict=True):
            draw_panel(figure, summary.title, view, chart.scale(view), styles, top)
            panels.append(_panel(view, chart, top, top + height))
            top += height + GAP
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    series = [_series(view, row, chart, pages) for view in views for row in view.rows]
    said = _description(summary, chart, views)
    return finish_svg(drawn.getvalue(), f"figure--{name}", said, series, panels)


def _styles(summary: Summary) -> dict[str, Style]:
    """Return how each implementation looks, in every view and chart."""
    rows = [row for view in summary.devices for row in view.rows]
    return assign_styles(
        {row.implementation: row.family for row in rows},
        [{row.implementation for row in view.rows} for view in summary.devices],
        first={row.implementation for row in rows if row.baseline},
    )


def _nothing(summary: Summary, chart: Chart) -> str:
    return f"{summary.title}: " + (f"nothing has a {chart.title}" if summary.devices else "no records yet")


def _description(summary: Summary, chart: Chart, views: Sequence[DeviceSummary]) -> str:
    devices = " and ".join(dict.fromkeys(view.device.name for view in views))
    return printable(f"{summary.title}: {chart.title} by workload{f' on {devices}' if devices else ''}")


def _panel(view: DeviceSummary, chart: Chart, top: float, bottom: float) -> Panel:
    """Return what a page is told of a panel; of one that can be switched, and has axes, also those of all charts."""
    box = " ".join(f"{72 * edge:.6g}" for edge in plot_box(view, top))
    switch = {"box": box, "scales": scales_json(view)} if chart.everywhere and has_axes(view) else {}
    return Panel(panel_id(view), {"view": panel_id(view), "bottom": f"{72 * bottom:.6g}"} | switch)


def _series(view: DeviceSummary, row: Row, chart: Chart, pages: Mapping[str, str] | None) -> Series:
    scale = chart.scale(view)
    page = f"../impls/{row.implementation}.html" if pages is None else pages.get(row.implementation, "")
    read = [(point, scale.read(point)) for point in row.points] if row.passed else []
    return Series(
        slug=row.slug,
        device=view.device.slug,
        title=f"{printable(row.title)} on {place_of(view)}",
        href=page,
        metric=scale.metric,
        unit=scale.unit,
        points=[
            {"at": str(at)}
            | _point_data(point, found)
            | ({"all": values_text(view, point)} if chart.everywhere else {})
            for at, (point, found) in enumerate(read)
            if found is not None
        ],
        failures=[_failure_data(point) for point in failures(row)],
    )


def _point_data(point: Point, found: Estimate) -> dict[str, str]:
    values = {"value": found.value} | ({"low": found.low, "high": found.high} if found.known else {})
    numbers = {name: f"{value:.6g}" for name, value in values.items()}
    return {"workload": printable(point.workload), **numbers}


def _failure_data(point: Point) -> dict[str, str]:
    assert point.status is not Status.OK
    return {
        "workload": printable(point.workload),
        "status": point.status.value,
        "reason": printable(point.reason),
    }
