"""The lines of a panel: medians, the bands of their intervals, and crosses for what failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import PathPatch
from matplotlib.path import Path

from kernels_bench_tools.records import Status
from kernels_bench_tools.summaries import DeviceSummary, Point, Row
from kernels_bench_tools.summarize.palette import Style

_CROSS = 0.14
"""Inches between crosses of one workload."""


def measured(point: Point) -> bool:
    """Whether a point belongs on the line: it ran, and its answer was right."""
    return point.status is Status.OK and point.p50_ms is not None


def failures(row: Row) -> list[Point]:
    """Return the points to cross out; none for a row that passed nothing, which its legend says once."""
    return [point for point in row.points if not measured(point)] if row.passed else []


def draw_rows(axes: Any, device: DeviceSummary, styles: Mapping[str, Style], slot: float) -> None:
    """Draw every row of a device: the line, the band of its intervals, and its failures.

    Args:
        axes: Where; x counts the workloads from 0.
        device: What.
        styles: How each implementation looks.
        slot: Inches from one workload to the next.
    """
    for row in device.rows:
        style = styles[row.implementation]
        _draw_band(axes, row, style, nudge=0.06 / slot)
        values = [point.p50_ms if measured(point) else math.nan for point in row.points]
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
            _draw_failures(axes, row, style, _crosses(device, row, slot))


def _crosses(device: DeviceSummary, row: Row, slot: float) -> list[float]:
    """Return where a row's failed workloads are crossed out: side by side with other rows' crosses."""
    places = []
    for index, point in enumerate(row.points):
        if not measured(point):
            peers = [other for other in device.rows if other.points[index] in failures(other)]
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


def _draw_band(axes: Any, row: Row, style: Style, nudge: float) -> None:
    """Fill between the ends of the intervals, over each run of workloads that have one.

    A run of one workload would have no area, so it reaches ``nudge`` to either side.
    """
    vertices: list[tuple[float, float]] = []
    codes: list[Any] = []
    for run in _runs(row.points):
        places = [(index, row.points[index].ci_low_ms, row.points[index].ci_high_ms) for index in run]
        sides = (-nudge, nudge) if len(run) == 1 else (0.0,)
        low = [(index + side, low) for index, low, _ in places for side in sides]
        high = [(index + side, high) for index, _, high in places for side in sides]
        corners: list[Any] = [*low, *reversed(high)]
        vertices += [*corners, corners[0]]
        codes += [Path.MOVETO] + [Path.LINETO] * (len(corners) - 1) + [Path.CLOSEPOLY]
    if vertices:
        band = PathPatch(
            Path(vertices, codes),
            facecolor=style.colour,
            alpha=0.22,
            linewidth=0,
            gid=f"band--{row.slug}",
        )
        axes.add_patch(band)


def _runs(points: Sequence[Point]) -> list[list[int]]:
    """Return the indices of points with an interval, each unbroken run by itself."""
    runs: list[list[int]] = []
    for index, point in enumerate(points):
        if measured(point) and point.ci_low_ms is not None and point.ci_high_ms is not None:
            if not runs or runs[-1][-1] != index - 1:
                runs.append([])
            runs[-1].append(index)
    return runs
