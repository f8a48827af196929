"""One device's panel of a chart: title, legend, lines over workloads. Sizes are inches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from kernels_bench_tools.summaries import DeviceSummary, Row
from kernels_bench_tools.summarize.lines import draw_rows, measured
from kernels_bench_tools.summarize.metrics import LATENCY
from kernels_bench_tools.summarize.palette import Style
from kernels_bench_tools.summarize.workloads import labels

WIDTH = 9.6
_LEFT, _RIGHT = 0.85, 0.25
_PLOT_WIDTH = WIDTH - _LEFT - _RIGHT
_TITLE, _LEGEND_ROW, _PLOT, _AXIS_LABEL, _GAP = 0.45, 0.25, 3.1, 0.42, 0.3
_DIGIT, _LETTER = 0.08, 0.068
"""Widths of characters of the measuring font at 9.5 points, on average."""
_TICK_LINE = 0.17
_TILT, _LONGEST_TILTED = 60, 26
_LONGEST_LEGEND = 46
_LOG_FROM = 10.0
"""Ratio of the largest to the smallest latency from which the axis is logarithmic."""


class Ticks(NamedTuple):
    """How the workloads are written below the axis."""

    texts: list[str]
    tilted: bool
    height: float


def printable(text: str) -> str:
    """Return ``text`` without the characters that XML and terminals cannot show."""
    return "".join(char for char in text if char.isprintable())


def panel_height(device: DeviceSummary) -> float:
    """Return the height that a device's panel takes, its share of white space included."""
    head = _TITLE + _legend_rows(device)[1] * _LEGEND_ROW + _GAP
    if not any(row.passed for row in device.rows):
        return head
    return head + _PLOT + _ticks(device).height + _AXIS_LABEL


def draw_panel(
    figure: Figure, title: str, device: DeviceSummary, styles: Mapping[str, Style], top: float
) -> None:
    """Draw a device's panel, ``top`` inches below the top of the figure.

    Every row gets its artists' ``gid``: ``series--``, ``band--``, ``failed--``, ``legend-label--`` and
    ``legend-handle--`` followed by its slug.
    """
    height = figure.get_figheight()
    head = _TITLE + _legend_rows(device)[1] * _LEGEND_ROW
    bottom = height - top - head - (_PLOT if any(row.passed for row in device.rows) else 0.01)
    plot = height - top - head - bottom
    axes = figure.add_axes((_LEFT / WIDTH, bottom / height, _PLOT_WIDTH / WIDTH, plot / height))
    at_title = (height - top - 0.28) / height
    heading = f"{printable(title)} · {printable(device.device.name)}"
    figure.text(0.1 / WIDTH, at_title, heading, fontsize=12, fontweight="bold")
    if any(row.passed for row in device.rows):
        lower = f"↓ {LATENCY.better} is better"
        figure.text(1 - _RIGHT / WIDTH, at_title, lower, ha="right", alpha=0.8)
        _draw_axes(axes, device)
    else:
        axes.set_axis_off()
    draw_rows(axes, device, styles, _slot(device))
    _draw_legend(axes, device, styles, 1 + 0.08 / plot)


def _slot(device: DeviceSummary) -> float:
    """Return the inches from one workload to the next."""
    return _PLOT_WIDTH / (len(device.workloads) - 0.2)


def _draw_axes(axes: Any, device: DeviceSummary) -> None:
    shown = [point for row in device.rows for point in row.points if measured(point)]
    known = (value for point in shown for value in (point.p50_ms, point.ci_low_ms, point.ci_high_ms))
    bounds = [value for value in known if value] or [1.0]
    low, high = min(bounds), max(bounds)
    logarithmic = high / low >= _LOG_FROM
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        subs = (1.0, 2.0, 5.0) if high / low < 2000 else (1.0,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, high * 1.1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel(LATENCY.label.replace(")", ", log scale)") if logarithmic else LATENCY.label)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    ticks = _ticks(device)
    tilt = {"rotation": _TILT, "ha": "right", "rotation_mode": "anchor"} if ticks.tilted else {}
    axes.set_xticks(range(len(ticks.texts)), ticks.texts, **tilt)
    axes.set_xlim(-0.4, len(ticks.texts) - 0.6)
    axes.set_xlabel(printable(labels(device.workloads).axis), alpha=0.9)


def _ticks(device: DeviceSummary) -> Ticks:
    """Return the workloads' labels on one line where they fit, else on several, else tilted."""
    texts = [printable(text) for text in labels(device.workloads).ticks]
    room = _slot(device) / _DIGIT - 1
    if max(map(len, texts)) <= room:
        return Ticks(texts, tilted=False, height=_TICK_LINE)
    stacked = [text.replace(" × ", "\n× ") for text in texts]
    lines = [text.split("\n") for text in stacked]
    if max(len(line) for text in lines for line in text) <= room:
        return Ticks(stacked, tilted=False, height=_TICK_LINE * max(map(len, lines)))
    tight = [text.replace(" × ", "×") for text in texts]
    cut = [text if len(text) <= _LONGEST_TILTED else f"{text[: _LONGEST_TILTED - 1]}…" for text in tight]
    rise = math.sin(math.radians(_TILT))
    return Ticks(cut, tilted=True, height=max(map(len, cut)) * _DIGIT * rise + 0.1)


def _legend_rows(device: DeviceSummary) -> tuple[int, int]:
    """Return how many columns and rows the legend takes."""
    longest = max(len(_legend_text(row, device)) for row in device.rows)
    columns = max(1, min(4, int(_PLOT_WIDTH / (longest * _LETTER + 0.75))))
    return columns, math.ceil(len(device.rows) / columns)


def _legend_text(row: Row, device: DeviceSummary) -> str:
    title = printable(row.title)
    title = title if len(title) <= _LONGEST_LEGEND else f"{title[: _LONGEST_LEGEND - 1]}…"
    if not row.passed:
        return f"{title} ({row.status.value})"
    notes = ["baseline"] if row.implementation == device.baseline else []
    notes += [f"{row.passed} of {row.total} ok"] if row.passed < row.total else []
    return f"{title} ({', '.join(notes)})" if notes else title


def _draw_legend(axes: Any, device: DeviceSummary, styles: Mapping[str, Style], above: float) -> None:
    handles = [_handle(row, styles[row.implementation]) for row in device.rows]
    legend = axes.legend(
        handles,
        # Set below: the legend would leave out a label that begins with an underscore.
        [" "] * len(handles),
        loc="lower left",
        bbox_to_anchor=(0.0, above),
        ncols=_legend_rows(device)[0],
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.7,
        handlelength=2.4,
        columnspacing=1.8,
    )
    drawn = zip(device.rows, legend.get_texts(), legend.legend_handles, strict=True)
    for row, text, handle in drawn:
        text.set_text(_legend_text(row, device))
        text.set_gid(f"legend-label--{row.slug}")
        handle.set_gid(f"legend-handle--{row.slug}")


def _handle(row: Row, style: Style) -> Line2D:
    return Line2D(
        [],
        [],
        color=style.colour,
        marker=style.marker,
        linestyle=style.dashes if row.passed else "none",
        markerfacecolor=style.colour if row.passed else "none",
        markersize=6.5,
        linewidth=2,
    )
