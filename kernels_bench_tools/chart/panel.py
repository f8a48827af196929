"""The panel of one view: heading, legend, axes, and a line for each implementation. Sizes are inches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from kernels_bench_tools.chart.palette import Style
from kernels_bench_tools.records.record import Regime
from kernels_bench_tools.records.summary import DeviceSummary, Estimate, Point, Row, WorkloadSummary
from kernels_bench_tools.results.metrics import Line, Metric, has_passed
from kernels_bench_tools.results.views import labels
from kernels_bench_tools.text import tick

WIDTH = 9.6
_LEFT, _RIGHT = 0.72, 0.2
_PLOT_WIDTH = WIDTH - _LEFT - _RIGHT
_TITLE, _CAPTION, _PLOT, _AXIS_LABEL = 0.45, 0.3, 3.1, 0.26
_LEGEND_ROW = 0.25
_LEGEND_LETTER, _WORD_LETTER, _DIGIT = 0.068, 0.062, 0.08
"""Average widths of characters of the measuring font: a letter at 9.5 points, at 8.5 points, a digit at 9.5 points."""
_LONGEST_TITLE, _LONGEST_TICK, _LONGEST_AXIS = 46, 26, 125
_TICK_LINE, _TILTED_LINE, _TILT = 0.17, 0.26, 60
_CROSS = 0.14
"""Distance of the crosses of one workload."""
_SHADES = {
    Regime.LAUNCH: 0.13,
    Regime.L2: 0.09,
    Regime.TRANSITION: 0.06,
    Regime.HBM: 0.03,
    Regime.COMPUTE: 0.0,
}
"""Opacity of the span of each regime."""


def printable(text: str) -> str:
    """Return ``text`` without the characters that XML and terminals cannot show."""
    return "".join(char for char in text if char.isprintable())


def view_title(view: DeviceSummary) -> str:
    """Return the device and the view's title."""
    return printable(" · ".join(filter(None, (view.device.name, view.view))))


def draw_panel(title: str, view: DeviceSummary, metric: Metric, styles: Mapping[str, Style]) -> Figure:
    """Return a view's panel as a figure of its own.

    Every row's artists have the ``gid`` ``series--``, ``band--``, ``failed--``, ``legend-label--`` and
    ``legend-handle--`` followed by the row's slug. Those of the panel are ``y-axis``, ``y-title``, ``y-better`` and
    ``rule``.
    """
    height = panel_height(view)
    bottom = height - _head(view) - _PLOT if has_axes(view) else 0.0
    plot = _PLOT if has_axes(view) else 0.01
    figure = Figure(figsize=(WIDTH, height))
    figure.patch.set_visible(False)
    axes = figure.add_axes((_LEFT / WIDTH, bottom / height, _PLOT_WIDTH / WIDTH, plot / height))
    axes.patch.set_visible(False)
    heading = f"{printable(title)} · {view_title(view)}"
    figure.text(0.1 / WIDTH, 1 - 0.28 / height, heading, fontsize=12, fontweight="bold")
    if has_axes(view):
        _draw_y_axis(axes, metric, view)
        _draw_workloads(axes, view.workloads)
        _draw_regimes(axes, view)
        _draw_rules(axes, metric.lines(view))
    else:
        axes.set_axis_off()
    for row in view.rows:
        _draw_row(axes, view, row, metric, styles[row.implementation])
    _draw_legend(axes, view, styles, 1 + (_CAPTION if has_axes(view) else 0.08) / plot)
    return figure


def has_axes(view: DeviceSummary) -> bool:
    """Return whether a view's panel has axes: where nothing passed, it has a heading and a legend only."""
    return any(row.passed for row in view.rows)


def panel_height(view: DeviceSummary) -> float:
    """Return the height of a view's panel."""
    if not has_axes(view):
        return _head(view) + 0.02
    return _head(view) + _PLOT + _tick_labels(view.workloads).height + _AXIS_LABEL


def plot_box(view: DeviceSummary) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of the plot within the panel."""
    return _LEFT, _head(view), _LEFT + _PLOT_WIDTH, _head(view) + _PLOT


def _head(view: DeviceSummary) -> float:
    legend = math.ceil(len(view.rows) / _legend_columns(view)) * _LEGEND_ROW
    return _TITLE + legend + (_CAPTION if has_axes(view) else 0)


def _slot(workloads: Sequence[WorkloadSummary]) -> float:
    """Return the distance from one workload to the next."""
    return _PLOT_WIDTH / (len(workloads) - 0.2)


class Axis(NamedTuple):
    """The range of an axis, and the numbers beside it."""

    low: float
    high: float
    ticks: list[float]


def axis_values(view: DeviceSummary, metric: Metric) -> list[float]:
    """Return every number that the axis must include, ends of intervals and lines as well; 1 if there is none."""
    found = [estimate for row in view.rows for point in row.points if (estimate := metric.estimate(point))]
    ends = [end for estimate in found for end in (estimate if estimate.known else estimate[:1])]
    return [value for value in (*ends, *(line.at for line in metric.lines(view))) if value > 0] or [1.0]


def is_logarithmic(metric: Metric, values: Sequence[float]) -> bool:
    """Return whether the axis is logarithmic unless a reader chooses otherwise."""
    return max(values) / min(values) >= metric.log_from


def linear_axis(values: Sequence[float]) -> Axis:
    """Return an axis from 0."""
    high = max(values) * 1.1
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(0, high)
    return Axis(0.0, high, _within(ticks, 0.0, high))


def logarithmic_axis(values: Sequence[float]) -> Axis:
    """Return an axis with room around the values, all of which must be greater than 0."""
    low, high = min(values) / 1.3, max(values) * 1.3
    spread = high / low
    subs = (1.0, 1.2, 1.5, *range(2, 10)) if spread < 6 else (1.0, 2.0, 5.0) if spread < 2000 else (1.0,)
    return Axis(low, high, _within(LogLocator(subs=subs, numticks=20).tick_values(low, high), low, high))


def _within(ticks: Sequence[float], low: float, high: float) -> list[float]:
    # The locators' sums leave tails such as 0.30000000000000004.
    return [float(f"{value:.6g}") for value in ticks if low <= value <= high]


def _draw_y_axis(axes: Any, metric: Metric, view: DeviceSummary) -> None:
    values = axis_values(view, metric)
    logarithmic = is_logarithmic(metric, values)
    axis = logarithmic_axis(values) if logarithmic else linear_axis(values)
    axes.set_yscale("log" if logarithmic else "linear")
    axes.set_ylim(axis.low, axis.high)
    axes.set_yticks(axis.ticks, [tick(value) for value in axis.ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(left=False, bottom=False)
    axes.yaxis.set_gid("y-axis")
    axes.grid(axis="y", clip_on=False)
    axes.set_axisbelow(True)
    above = {"transform": axes.transAxes, "va": "bottom", "alpha": 0.9}
    at = 1 + 0.07 / _PLOT
    title = metric.label
    if logarithmic:
        title = f"{title[:-1]}, log scale)" if title.endswith(")") else f"{title} (log scale)"
    axes.text(-(_LEFT - 0.1) / _PLOT_WIDTH, at, title, gid="y-title", **above)
    arrow = "↓" if metric.better == "lower" else "↑"
    axes.text(1, at, f"{arrow} {metric.better} is better", ha="right", gid="y-better", **above)


def _draw_rules(axes: Any, lines: Sequence[Line]) -> None:
    ink = axes.spines["bottom"].get_edgecolor()
    for line in lines:
        axes.axhline(line.at, color=ink, linewidth=1.2, dashes=(6, 3), alpha=0.65, clip_on=False, gid="rule")
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
                gid="rule",
            )


class TickLabels(NamedTuple):
    """The workloads below the horizontal axis."""

    texts: list[str]
    axis: str
    tilted: bool
    height: float
    """From the axis to the lower end of the labels."""


def _tick_labels(workloads: Sequence[WorkloadSummary]) -> TickLabels:
    """Return the labels on one line where they fit, else on several lines, else tilted."""
    named = labels(workloads)
    texts, axis = [printable(text) for text in named.ticks], printable(named.axis)
    room = _slot(workloads) / _DIGIT - 1
    if max(map(len, texts)) <= room:
        return TickLabels(texts, axis, tilted=False, height=_TICK_LINE)
    stacked = [text.replace(" × ", "\n× ") for text in texts]
    lines = [text.split("\n") for text in stacked]
    if max(len(line) for text in lines for line in text) <= room:
        return TickLabels(stacked, axis, tilted=False, height=_TICK_LINE * max(map(len, lines)))
    cut = [_cut(text.replace(" × ", "×"), _LONGEST_TICK) for text in texts]
    rise = max(map(len, cut)) * _DIGIT * math.sin(math.radians(_TILT))
    return TickLabels(cut, axis, tilted=True, height=rise + _TILTED_LINE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _draw_workloads(axes: Any, workloads: Sequence[WorkloadSummary]) -> None:
    found = _tick_labels(workloads)
    tilt = {"rotation": _TILT, "ha": "right", "rotation_mode": "anchor"} if found.tilted else {}
    axes.set_xticks(range(len(found.texts)), found.texts, **tilt)
    axes.set_xlim(-0.4, len(found.texts) - 0.6)
    axes.set_xlabel(_cut(found.axis, _LONGEST_AXIS), alpha=0.9)


def regimes(view: DeviceSummary) -> list[Regime | None]:
    """Return for each workload the regime of most implementations that passed it; None where none is known."""
    found = []
    for at in range(len(view.workloads)):
        known = [row.points[at].regime for row in view.rows if has_passed(row.points[at])]
        counts = Counter(regime for regime in known if regime is not None)
        found.append(counts.most_common(1)[0][0] if counts else None)
    return found


def _draw_regimes(axes: Any, view: DeviceSummary) -> None:
    """Shade the workloads by their regime, and label each span that has room for it."""
    ink = axes.spines["bottom"].get_edgecolor()
    for regime, run in groupby(enumerate(regimes(view)), key=lambda pair: pair[1]):
        if regime is None:
            continue
        places = [at for at, _ in run]
        start, end = max(places[0] - 0.5, -0.4), min(places[-1] + 0.5, len(view.workloads) - 0.6)
        if opacity := _SHADES[regime]:
            axes.axvspan(start, end, facecolor=ink, alpha=opacity, linewidth=0, zorder=0, clip_on=False)
        short = regime.label.replace("-bound", "").replace("cache and memory", "mixed").removeprefix("in ")
        room = (end - start) * _slot(view.workloads) - 0.1
        text = next((text for text in (regime.label, short) if len(text) * _WORD_LETTER <= room), "")
        style = {"ha": "center", "va": "top", "fontsize": 8.5, "alpha": 0.8, "zorder": 1}
        axes.text((start + end) / 2, 0.985, text, transform=axes.get_xaxis_transform(), **style)


def failed_points(row: Row) -> list[Point]:
    """Return the points to cross out; none for a row that passed nothing, which the legend marks."""
    return [point for point in row.points if not has_passed(point)] if row.passed else []


def _draw_row(axes: Any, view: DeviceSummary, row: Row, metric: Metric, style: Style) -> None:
    """Draw the line of a row, the band of its intervals, and a cross for each failed workload."""
    slot = _slot(view.workloads)
    found = [metric.estimate(point) for point in row.points]
    _draw_band(axes, row, found, style, nudge=0.06 / slot)
    shown = range(len(found)) if row.passed else range(0)
    values = [math.nan if (estimate := found[at]) is None else estimate.value for at in shown]
    line = {"color": style.colour, "marker": style.marker, "linestyle": style.dashes, "linewidth": 2}
    axes.plot(shown, values, markersize=6.5, clip_on=False, gid=f"series--{row.slug}", **line)
    if places := _crosses(view, row, slot):
        axes.plot(
            places,
            [0.0] * len(places),
            transform=axes.get_xaxis_transform(),
            linestyle="none",
            marker="X",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=style.colour,
            markeredgewidth=1.4,
            clip_on=False,
            zorder=5,
            gid=f"failed--{row.slug}",
        )


def _crosses(view: DeviceSummary, row: Row, slot: float) -> list[float]:
    """Return where a row's failed workloads are crossed out: side by side with other rows' crosses."""
    failed = {other.slug: failed_points(other) for other in view.rows}
    places = []
    for index, point in enumerate(row.points):
        if point in failed[row.slug]:
            peers = [other for other in view.rows if other.points[index] in failed[other.slug]]
            step = min(_CROSS / slot, 0.8 / len(peers))
            places.append(index + (peers.index(row) - (len(peers) - 1) / 2) * step)
    return places


def _draw_band(axes: Any, row: Row, found: Sequence[Estimate | None], style: Style, nudge: float) -> None:
    """Fill between the ends of the intervals; a run of one workload extends ``nudge`` to either side, to have an area."""
    vertices: list[tuple[float, float]] = []
    codes: list[Any] = []
    numbered = [(at, estimate if estimate and estimate.known else None) for at, estimate in enumerate(found)]
    for known, run in groupby(numbered, key=lambda pair: pair[1] is not None):
        pairs = [(at, estimate) for at, estimate in run if estimate is not None]
        if not known:
            continue
        sides = (-nudge, nudge) if len(pairs) == 1 else (0.0,)
        low = [(at + side, estimate.low) for at, estimate in pairs for side in sides]
        high = [(at + side, estimate.high) for at, estimate in pairs for side in sides]
        corners: list[Any] = [*low, *reversed(high)]
        vertices += [*corners, corners[0]]
        codes += [Path.MOVETO] + [Path.LINETO] * (len(corners) - 1) + [Path.CLOSEPOLY]
    if vertices:
        look = {"facecolor": style.colour, "alpha": 0.22, "linewidth": 0, "clip_on": False}
        axes.add_patch(PathPatch(Path(vertices, codes), gid=f"band--{row.slug}", **look))


def _legend_columns(view: DeviceSummary) -> int:
    longest = max(len(_legend_text(row, view)) for row in view.rows)
    return max(1, min(4, int(_PLOT_WIDTH / (longest * _LEGEND_LETTER + 0.85))))


def _legend_text(row: Row, view: DeviceSummary) -> str:
    title = _cut(printable(row.title), _LONGEST_TITLE)
    if not row.passed:
        return f"{title} ({row.status.label})"
    notes = ["baseline"] if row.implementation == view.baseline else []
    notes += [f"{row.passed} of {row.total} ok"] if row.passed < row.total else []
    return f"{title} ({', '.join(notes)})" if notes else title


def _draw_legend(axes: Any, view: DeviceSummary, styles: Mapping[str, Style], above: float) -> None:
    """Draw the legend, of all implementations of the view, with its lower end at ``above``, in heights of the axes."""
    handles = [_handle(row, styles[row.implementation]) for row in view.rows]
    legend = axes.legend(
        handles,
        # Set below: the legend would leave out a label that begins with an underscore.
        [" "] * len(handles),
        loc="lower left",
        bbox_to_anchor=(0.0, above),
        ncols=_legend_columns(view),
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.7,
        handlelength=3.2,
        columnspacing=1.8,
    )
    drawn = zip(view.rows, legend.get_texts(), legend.legend_handles, strict=True)
    for row, text, handle in drawn:
        text.set_text(_legend_text(row, view))
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
