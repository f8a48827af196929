"""The lines of a panel: medians, the bands of their intervals, and crosses for what failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from kernels_bench_tools.schema.summary import DeviceSummary, Estimate, Point, Row
from kernels_bench_tools.summarize.chart.palette import Style
from kernels_bench_tools.summarize.chart.spec import Scale, passed

_CROSS = 0.14
"""Inches between crosses of one workload."""


def failures(row: Row) -> list[Point]:
    """Return the points to cross out; none for a row that passed nothing, which its legend says once."""
    return [point for point in row.points if not passed(point)] if row.passed else []


def draw_rows(axes: Any, view: DeviceSummary, scale: Scale, styles: Mapping[str, Style], slot: float) -> None:
    """Draw every row of a view: the line, the band of its intervals, and its failures.

    Args:
        axes: Where; x counts the workloads from 0.
        view: What.
        scale: Which number of its points.
        styles: How each implementation looks.
        slot: Inches from one workload to the next.
    """
    for row in view.rows:
        style = styles[row.implementation]
        found = [scale.read(point) for point in row.points]
        _draw_band(axes, row, found, style, nudge=0.06 / slot)
        values = [math.nan if estimate is None else estimate.value for estimate in found]
        shown = range(len(values)) if row.passed else ()
        axes.plot(
            shown,
            [values[index] for index in shown],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dashes,
            markersize=6.5,
            linewidth=2,
            clip_on=False,
            gid=f"series--{row.slug}",
        )
        if failures(row):
            _draw_failures(axes, row, style, _crosses(view, row, slot))


def _crosses(view: DeviceSummary, row: Row, slot: float) -> list[float]:
    """Return where a row's failed workloads are crossed out: side by side with other rows' crosses."""
    places = []
    for index, point in enumerate(row.points):
        if not passed(point):
            peers = [other for other in view.rows if other.points[index] in failures(other)]
            step = min(_CROSS / slot, 0.8 / len(peers))
            places.append(index + (peers.index(row) - (len(peers) - 1) / 2) * step)
    return places


def _draw_failures(axes: Any, row: Row, style: Style, at: list[float]) -> None:
    axes.plot(
        at,
        [0.0] * len(at),
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


def _draw_band(axes: Any, row: Row, found: Sequence[Estimate | None], style: Style, nudge: float) -> None:
    """Fill between the ends of the intervals, over each run of workloads that have one.

    A run of one workload would have no area, so it reaches ``nudge`` to either side.
    """
    vertices: list[tuple[float, float]] = []
    codes: list[Any] = []
    for run in _runs(found):
        sides = (-nudge, nudge) if len(run) == 1 else (0.0,)
        low = [(index + side, estimate.low) for index, estimate in run for side in sides]
        high = [(index + side, estimate.high) for index, estimate in run for side in sides]
        corners: list[Any] = [*low, *reversed(high)]
        vertices += [*corners, corners[0]]
        codes += [Path.MOVETO] + [Path.LINETO] * (len(corners) - 1) + [Path.CLOSEPOLY]
    if vertices:
        band = PathPatch(
            Path(vertices, codes),
            facecolor=style.colour,
            alpha=0.22,
            linewidth=0,
            clip_on=False,
            gid=f"band--{row.slug}",
        )
        axes.add_patch(band)


def _runs(found: Sequence[Estimate | None]) -> list[list[tuple[int, Estimate]]]:
    """Return the numbers that have an interval with their places, each unbroken run by itself."""
    runs: list[list[tuple[int, Estimate]]] = []
    for index, estimate in enumerate(found):
        if estimate is not None and estimate.known:
            if not runs or runs[-1][-1][0] != index - 1:
                runs.append([])
            runs[-1].append((index, estimate))
    return runs
