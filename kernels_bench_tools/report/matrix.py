"""The matrix of a view: every workload by every implementation, as a multiple of the workload's shortest time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels_bench_tools.report.device_rows import (
    DeviceViews,
    by_workload,
    measured_rows,
    view_slug,
    view_title,
)
from kernels_bench_tools.report.format import decimals, milliseconds
from kernels_bench_tools.report.words import Mark, status_mark
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Point

STEPS = (1.02, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Upper ends of the shades but for the last: as good as the best, then worse and worse."""


@dataclass(frozen=True)
class Cell:
    """One implementation on one workload."""

    text: str
    """Its time over the shortest right one; empty if it has no right time."""
    shade: int
    time: str
    """Its time, as printed."""
    mark: Mark | None = None
    """How it ended, if not well."""


@dataclass(frozen=True)
class MatrixView:
    """A view as a matrix."""

    id: str
    title: str
    columns: Sequence[tuple[str, str]]
    """Title and URL of each implementation; the URL is empty if it has no page."""
    rows: Sequence[tuple[str, Sequence[Cell]]]
    absent: Sequence[str]
    """Titles of the implementations that have no time here."""


@dataclass(frozen=True)
class MatrixDevice:
    """A device's views."""

    id: str
    name: str
    views: Sequence[MatrixView]


def matrix_devices(devices: Sequence[DeviceViews], urls: Mapping[str, str]) -> list[MatrixDevice]:
    """Return the matrices of an operator, device by device and view by view.

    Args:
        devices: What is known.
        urls: Page of each implementation that has one.
    """
    return [
        MatrixDevice(
            device.device.slug, device.device.name, [matrix_view(view, urls) for view in device.views]
        )
        for device in devices
    ]


def matrix_view(view: DeviceSummary, urls: Mapping[str, str]) -> MatrixView:
    """Return the matrix of one view."""
    shown = measured_rows(view)
    return MatrixView(
        # The device's heading has the id of its first view.
        id=f"matrix-{view_slug(view)}",
        title=view_title(view),
        columns=[(row.title, urls.get(row.implementation, "")) for row in shown],
        rows=[
            (workload.name, [_cell(point, shortest) for point in points])
            for workload, points, shortest in by_workload(view)
        ],
        absent=[row.title for row in view.rows if row not in shown],
    )


def _cell(point: Point | None, shortest: float | None) -> Cell:
    if point is None:
        return Cell("", 0, "", status_mark(None))
    time = f"{milliseconds(point.p50_ms)} ms" if point.p50_ms else ""
    if point.status is not Status.OK or not point.p50_ms or not shortest:
        return Cell("", 0, time, status_mark(point.status))
    ratio = point.p50_ms / shortest
    return Cell(f"{ratio:,.{min(2, decimals(ratio, 3))}f}", _shade(ratio), time)


def _shade(ratio: float) -> int:
    """Return the shade of a ratio.

    >>> _shade(1.0), _shade(1.3), _shade(2.0), _shade(80.0)
    (0, 3, 4, 6)
    """
    return bisect_left(STEPS, round(ratio, 2))
