"""One view's panel of a chart: title, legend, lines over workloads. Sizes are inches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kernels_bench_tools.summaries import DeviceSummary
from kernels_bench_tools.summarize.charts import Line, Scale
from kernels_bench_tools.summarize.legend import draw_legend, legend_height
from kernels_bench_tools.summarize.lines import draw_rows
from kernels_bench_tools.summarize.palette import Style
from kernels_bench_tools.summarize.ticks import Ticks, draw_ticks, printable, ticks

WIDTH = 9.6
_LEFT, _RIGHT = 0.85, 0.25
_PLOT_WIDTH = WIDTH - _LEFT - _RIGHT
_TITLE, _PLOT, _AXIS_LABEL, _GAP = 0.45, 3.1, 0.42, 0.3


def place_of(view: DeviceSummary) -> str:
    """Return what a panel is of: the device, and which of its views."""
    return printable(" · ".join(filter(None, (view.device.name, view.view))))


def panel_height(view: DeviceSummary) -> float:
    """Return the height that a view's panel takes, its share of white space included."""
    head = _TITLE + legend_height(view, _PLOT_WIDTH) + _GAP
    return head + _PLOT + _ticks(view).height + _AXIS_LABEL if _ran(view) else head


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
    ``legend-handle--`` followed by its slug.
    """
    height = figure.get_figheight()
    head = _TITLE + legend_height(view, _PLOT_WIDTH)
    bottom = height - top - head - (_PLOT if _ran(view) else 0.01)
    plot = height - top - head - bottom
    axes = figure.add_axes((_LEFT / WIDTH, bottom / height, _PLOT_WIDTH / WIDTH, plot / height))
    at_title = (height - top - 0.28) / height
    heading = f"{printable(title)} · {place_of(view)}"
    figure.text(0.1 / WIDTH, at_title, heading, fontsize=12, fontweight="bold")
    if _ran(view):
        arrow = "↓" if scale.better == "lower" else "↑"
        better = f"{arrow} {scale.better} is better"
        figure.text(1 - _RIGHT / WIDTH, at_title, better, ha="right", alpha=0.8)
        lines = scale.lines(view)
        _draw_axis(axes, scale, _numbers(view, scale, lines))
        draw_ticks(axes, _ticks(view))
        _draw_lines(axes, lines)
    else:
        axes.set_axis_off()
    draw_rows(axes, view, scale, styles, _slot(view))
    draw_legend(axes, view, styles, _PLOT_WIDTH, 1 + 0.08 / plot)


def _ran(view: DeviceSummary) -> bool:
    return any(row.passed for row in view.rows)


def _slot(view: DeviceSummary) -> float:
    """Return the inches from one workload to the next."""
    return _PLOT_WIDTH / (len(view.workloads) - 0.2)


def _ticks(view: DeviceSummary) -> Ticks:
    return ticks(view.workloads, _slot(view))


def _numbers(view: DeviceSummary, scale: Scale, lines: Sequence[Line]) -> list[float]:
    """Return every number that the axis must reach."""
    found = [estimate for row in view.rows for point in row.points if (estimate := scale.read(point))]
    ends = [end for estimate in found for end in (estimate if estimate.known else estimate[:1])]
    return [number for number in (*ends, *(line.at for line in lines)) if number > 0] or [1.0]


def _draw_axis(axes: Any, scale: Scale, numbers: Sequence[float]) -> None:
    low, high = min(numbers), max(numbers)
    logarithmic = high / low >= scale.log_from
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        subs = (1.0, 2.0, 5.0) if high / low < 2000 else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, high * 1.1)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:g}")
    )
    unit = f"{scale.unit}, " if scale.unit else ""
    axes.set_ylabel(f"{scale.metric} ({unit}log scale)" if logarithmic else scale.label)
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _draw_lines(axes: Any, lines: Sequence[Line]) -> None:
    ink = axes.spines["bottom"].get_edgecolor()
    for line in lines:
        axes.axhline(line.at, color=ink, linewidth=1.2, dashes=(6, 3), alpha=0.65)
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
            )
