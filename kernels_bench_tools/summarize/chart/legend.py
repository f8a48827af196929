"""The legend of a panel: every implementation of the view, also those that did not run. Sizes are inches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.lines import Line2D

from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Row
from kernels_bench_tools.summarize.chart.palette import Style
from kernels_bench_tools.summarize.chart.ticks import printable

_ROW = 0.25
_LETTER = 0.068
"""Width of a letter of the measuring font at 9.5 points, on average."""
_LONGEST = 46
_STATUS_WORDS = {
    Status.INVALID: "invalid output",
    Status.ABSENT: "not tried here",
    Status.EXCEEDS_PHYSICS: "exceeds physics",
}


def legend_height(view: DeviceSummary, width: float) -> float:
    """Return the height that the legend takes, where it may be so wide."""
    return math.ceil(len(view.rows) / _columns(view, width)) * _ROW


def draw_legend(
    axes: Any, view: DeviceSummary, styles: Mapping[str, Style], width: float, above: float
) -> None:
    """Draw the legend with its lower end at ``above``, in heights of the axes.

    Labels and handles get the ids ``legend-label--`` and ``legend-handle--`` followed by the row's slug.
    """
    handles = [_handle(row, styles[row.implementation]) for row in view.rows]
    legend = axes.legend(
        handles,
        # Set below: the legend would leave out a label that begins with an underscore.
        [" "] * len(handles),
        loc="lower left",
        bbox_to_anchor=(0.0, above),
        ncols=_columns(view, width),
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.7,
        handlelength=3.2,
        columnspacing=1.8,
    )
    drawn = zip(view.rows, legend.get_texts(), legend.legend_handles, strict=True)
    for row, text, handle in drawn:
        text.set_text(_text(row, view))
        text.set_gid(f"legend-label--{row.slug}")
        handle.set_gid(f"legend-handle--{row.slug}")


def _columns(view: DeviceSummary, width: float) -> int:
    longest = max(len(_text(row, view)) for row in view.rows)
    return max(1, min(4, int(width / (longest * _LETTER + 0.85))))


def _text(row: Row, view: DeviceSummary) -> str:
    title = printable(row.title)
    title = title if len(title) <= _LONGEST else f"{title[: _LONGEST - 1]}…"
    if not row.passed:
        return f"{title} ({_STATUS_WORDS.get(row.status, row.status.value)})"
    notes = ["baseline"] if row.implementation == view.baseline else []
    notes += [f"{row.passed} of {row.total} ok"] if row.passed < row.total else []
    return f"{title} ({', '.join(notes)})" if notes else title


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
