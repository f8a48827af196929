"""One view's panel of a chart: title, legend, lines over workloads. Sizes are inches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from kernels_bench_tools.schema.summary import DeviceSummary
from kernels_bench_tools.summarize.chart.axis import (
    linear_axis,
    logarithmic_axis,
    numbers,
    reads_better_logarithmic,
    tick_text,
)
from kernels_bench_tools.summarize.chart.legend import draw_legend, legend_height
from kernels_bench_tools.summarize.chart.lines import draw_rows
from kernels_bench_tools.summarize.chart.palette import Style
from kernels_bench_tools.summarize.chart.regimes import draw_regimes
from kernels_bench_tools.summarize.chart.spec import Line, Scale
from kernels_bench_tools.summarize.chart.ticks import Ticks, draw_ticks, printable, ticks

WIDTH = 9.6
_LEFT, _RIGHT = 0.72, 0.2
_PLOT_WIDTH = WIDTH - _LEFT - _RIGHT
_TITLE, _CAPTION, _PLOT, _AXIS_LABEL = 0.45, 0.3, 3.1, 0.26
GAP = 0.3
"""White space that parts a panel from the next; neither the last one of a figure nor one on its own needs it."""


def place_of(view: DeviceSummary) -> str:
    """Return what a panel is of: the device, and which of its views."""
    return printable(" · ".join(filter(None, (view.device.name, view.view))))


def panel_id(view: DeviceSummary) -> str:
    """Return what tells a panel from the others of its figure: the device's slug, and the view's key if it has one."""
    return "-".join(filter(None, (view.device.slug, view.key)))


def panel_height(view: DeviceSummary) -> float:
    """Return the height that a view's panel takes, without the gap below it."""
    head = _head(view)
    return head + _PLOT + _ticks(view).height + _AXIS_LABEL if has_axes(view) else head


def plot_box(view: DeviceSummary, top: float) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of the plot of a panel that begins at ``top``, all in inches."""
    above = top + _head(view)
    return _LEFT, above, _LEFT + _PLOT_WIDTH, above + _PLOT


def draw_panel(
    figure: Figure,
    title: str,
    view: DeviceSummary,
    scale: Scale,
    styles: Mapping[str, Style],
    top: float,
) -> None:
    """Draw a view's panel, ``top`` inches below the top of the figure.

    Every row gets its artists' ``gid``: ``series--``, ``band--``, ``failed--``, ``legend-label--`` and
    ``legend-handle--`` followed by its slug. The panel's own are ``panel--``, ``y-axis--``, ``y-title--``,
    ``y-better--`` and ``rule--``, followed by :func:`panel_id`.
    """
    height = figure.get_figheight()
    head = _head(view)
    bottom = height - top - head - (_PLOT if has_axes(view) else 0.01)
    plot = height - top - head - bottom
    axes = figure.add_axes((_LEFT / WIDTH, bottom / height, _PLOT_WIDTH / WIDTH, plot / height))
    axes.set_gid(f"panel--{panel_id(view)}")
    heading = f"{printable(title)} · {place_of(view)}"
    figure.text(0.1 / WIDTH, (height - top - 0.28) / height, heading, fontsize=12, fontweight="bold")
    if has_axes(view):
        _draw_axis(axes, scale, view)
        draw_ticks(axes, _ticks(view))
        draw_regimes(axes, view, _slot(view))
        _draw_lines(axes, scale.lines(view), panel_id(view))
    else:
        axes.set_axis_off()
    draw_rows(axes, view, scale, styles, _slot(view))
    draw_legend(axes, view, styles, _PLOT_WIDTH, 1 + (_CAPTION if has_axes(view) else 0.08) / plot)


def _head(view: DeviceSummary) -> float:
    return _TITLE + legend_height(view, _PLOT_WIDTH) + (_CAPTION if has_axes(view) else 0)


def has_axes(view: DeviceSummary) -> bool:
    """Return whether a view's panel has axes: where nothing passed, it is a heading and a legend."""
    return any(row.passed for row in view.rows)


def _slot(view: DeviceSummary) -> float:
    """Return the inches from one workload to the next."""
    return _PLOT_WIDTH / (len(view.workloads) - 0.2)


def _ticks(view: DeviceSummary) -> Ticks:
    return ticks(view.workloads, _slot(view))


def _draw_axis(axes: Any, scale: Scale, view: DeviceSummary) -> None:
    found = numbers(view, scale)
    logarithmic = reads_better_logarithmic(scale, found)
    axis = logarithmic_axis(found) if logarithmic else linear_axis(found)
    axes.set_yscale("log" if logarithmic else "linear")
    axes.set_ylim(axis.low, axis.high)
    axes.set_yticks(axis.ticks, [tick_text(tick) for tick in axis.ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    # The grid says where the numbers are: ticks would only add to the page.
    axes.tick_params(left=False, bottom=False)
    axes.yaxis.set_gid(f"y-axis--{panel_id(view)}")
    axes.grid(axis="y", clip_on=False)
    axes.set_axisbelow(True)
    _draw_caption(axes, scale, panel_id(view), logarithmic)


def _draw_caption(axes: Any, scale: Scale, panel: str, logarithmic: bool) -> None:
    """Say above the axis what it measures, where it is read before the lines are."""
    unit = f"{scale.unit}, " if scale.unit else ""
    measured = f"{scale.metric} ({unit}log scale)" if logarithmic else scale.label
    arrow = "↓" if scale.better == "lower" else "↑"
    above = {"transform": axes.transAxes, "va": "bottom", "alpha": 0.9}
    at = 1 + 0.07 / _PLOT
    axes.text(-(_LEFT - 0.1) / _PLOT_WIDTH, at, measured, gid=f"y-title--{panel}", **above)
    axes.text(1, at, f"{arrow} {scale.better} is better", ha="right", gid=f"y-better--{panel}", **above)


def _draw_lines(axes: Any, lines: Sequence[Line], panel: str) -> None:
    ink = axes.spines["bottom"].get_edgecolor()
    for line in lines:
        axes.axhline(
            line.at, color=ink, linewidth=1.2, dashes=(6, 3), alpha=0.65, clip_on=False, gid=f"rule--{panel}"
        )
        if line.label:
            axes.annotate(
                printable(line.label),
                (1, line.at),
                xycoords=axes.get_yaxis_transform(),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8.5,
                alpha=0.85,
                gid=f"rule--{panel}",
            )
