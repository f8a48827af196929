"""The matrix of a view: workloads by implementations, as multiples of each workload's fastest correct time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_bench_tools.report.labels import Label, status_label
from kernels_bench_tools.report.rows import (
    by_workload,
    measured_rows,
    view_slug,
    view_title,
)
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Point
from kernels_bench_tools.text import decimals, milliseconds

STEPS = (1.02, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Upper bounds of the shades, except the last one."""


@dataclass(frozen=True)
class MatrixCell:
    """One implementation on one workload."""

    text: str
    """Its time over the fastest correct one; empty if it has no correct time."""
    shade: int
    time: str
    """Its time, as printed."""
    failure: Label | None = None
    """Its status if it is not ok."""


@dataclass(frozen=True)
class Matrix:
    """A view as a matrix."""

    id: str
    title: str
    columns: Sequence[tuple[str, str]]
    """Title and URL of each implementation; the URL is empty if it has no page."""
    rows: Sequence[tuple[str, Sequence[MatrixCell]]]
    absent: Sequence[str]
    """Titles of the implementations without a time."""


def view_matrix(view: DeviceSummary, urls: Mapping[str, str]) -> Matrix:
    """Return the matrix of one view, given the page of each implementation that has one."""
    shown = measured_rows(view)
    return Matrix(
        # The device's heading has the id of its first view.
        id=f"matrix-{view_slug(view)}",
        title=view_title(view),
        columns=[(row.title, urls.get(row.implementation, "")) for row in shown],
        rows=[
            (workload.name, [_cell(point, fastest) for point in points])
            for workload, points, fastest in by_workload(view)
        ],
        absent=[row.title for row in view.rows if row not in shown],
    )


def _cell(point: Point | None, fastest: float | None) -> MatrixCell:
    if point is None:
        return MatrixCell("", 0, "", status_label(None))
    time = f"{milliseconds(point.p50_ms)} ms" if point.p50_ms else ""
    if point.status is not Status.OK or not point.p50_ms or not fastest:
        return MatrixCell("", 0, time, status_label(point.status))
    ratio = point.p50_ms / fastest
    return MatrixCell(f"{ratio:,.{min(2, decimals(ratio, 3))}f}", _shade(ratio), time)


def _shade(ratio: float) -> int:
    """Return the shade of a ratio.

    >>> _shade(1.0), _shade(1.3), _shade(2.0), _shade(80.0)
    (0, 3, 4, 6)
    """
    return bisect_left(STEPS, round(ratio, 2))
