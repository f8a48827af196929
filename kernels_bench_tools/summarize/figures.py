"""Charts of a summary: one figure for all devices, a panel for each."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence

import matplotlib.style
from matplotlib.figure import Figure

from kernels_bench_tools.naming import slugify
from kernels_bench_tools.records import Status
from kernels_bench_tools.summaries import DeviceSummary, Point, Row, Summary
from kernels_bench_tools.summarize.lines import failures, measured
from kernels_bench_tools.summarize.palette import assign_styles
from kernels_bench_tools.summarize.panel import WIDTH, draw_panel, panel_height, printable
from kernels_bench_tools.summarize.svg import FONT, INK, Series, finish_svg

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
_BELOW_LAST = 0.3
"""Inches of white space that part a panel from the next, and that the last one does not need."""


def latency_svg(summary: Summary, pages: Mapping[str, str] | None = None) -> bytes:
    """Return the chart of latencies as SVG, the same bytes for the same summary.

    Each implementation on each device is a group ``series--<slug>`` (``Row.slug``), also one without a
    point; its markers carry ``data-workload``, ``data-value`` and the interval, in ms. Failed workloads
    of an implementation that passed others are crosses on the x-axis, with ``data-status`` and
    ``data-reason``.

    Args:
        summary: What to draw.
        pages: Implementation id to the URL of its page, for the links; without an entry there is no link.
            None links each to ``../impls/<implementation>.html``.

    Raises:
        RecordError: Two implementations of a device have the same slug.
    """
    name = slugify(f"{summary.operator} latency")
    rows = [row for device in summary.devices for row in device.rows]
    styles = assign_styles({row.implementation: row.family for row in rows})
    heights = [panel_height(device) for device in summary.devices]
    style = _STYLE | {"svg.hashsalt": name, "svg.id": name}
    with matplotlib.style.context(["default", style]), warnings.catch_warnings():
        # A glyph that the measuring font lacks is drawn by the reader's.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure = Figure(figsize=(WIDTH, max(sum(heights) - _BELOW_LAST, _EMPTY_HEIGHT)))
        if not summary.devices:
            figure.text(0.5, 0.5, f"{printable(summary.title)}: no records yet", ha="center", va="center")
        top = 0.0
        for device, height in zip(summary.devices, heights, strict=True):
            draw_panel(figure, summary.title, device, styles, top)
            top += height
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return finish_svg(drawn.getvalue(), f"figure--{name}", _description(summary), _all_series(summary, pages))


def _description(summary: Summary) -> str:
    devices = " and ".join(device.device.name for device in summary.devices)
    return printable(f"{summary.title}: latency by workload{f' on {devices}' if devices else ''}")


def _all_series(summary: Summary, pages: Mapping[str, str] | None) -> Sequence[Series]:
    return [_series(device, row, pages) for device in summary.devices for row in device.rows]


def _series(device: DeviceSummary, row: Row, pages: Mapping[str, str] | None) -> Series:
    page = f"../impls/{row.implementation}.html" if pages is None else pages.get(row.implementation, "")
    return Series(
        slug=row.slug,
        device=device.device.slug,
        title=printable(f"{row.title} on {device.device.name}"),
        href=page,
        points=[_point_data(point) for point in row.points if measured(point)],
        failures=[_failure_data(point) for point in failures(row)],
    )


def _point_data(point: Point) -> dict[str, str]:
    values = {"value": point.p50_ms, "low": point.ci_low_ms, "high": point.ci_high_ms}
    numbers = {name: f"{value:.6g}" for name, value in values.items() if value is not None}
    return {"workload": printable(point.workload), **numbers}


def _failure_data(point: Point) -> dict[str, str]:
    assert point.status is not Status.OK
    return {
        "workload": printable(point.workload),
        "status": point.status.value,
        "reason": printable(point.reason),
    }
