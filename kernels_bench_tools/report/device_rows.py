"""Views of a device, brought together: what pages show device by device, and in one line of each view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Regime, Status
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row, WorkloadSummary


@dataclass(frozen=True)
class DeviceViews:
    """A device with all of its views, in their order."""

    device: Device
    views: Sequence[DeviceSummary]

    @property
    def groups(self) -> list[DeviceSummary]:
        """The first view of each of the operator's functions; one view where there is only one function."""
        firsts: dict[str, DeviceSummary] = {}
        for view in self.views:
            firsts.setdefault(group_of(view), view)
        return list(firsts.values())


def by_device(summaries: Iterable[DeviceSummary]) -> list[DeviceViews]:
    """Return the devices in their order, each with its views."""
    found: dict[str, list[DeviceSummary]] = {}
    for summary in summaries:
        found.setdefault(summary.device.slug, []).append(summary)
    return [DeviceViews(views[0].device, views) for views in found.values()]


def group_of(view: DeviceSummary) -> str:
    """Return the function of the operator that a view is of; empty where there is only one."""
    return next((workload.group for workload in view.workloads if workload.group), "")


def is_forward(view: DeviceSummary) -> bool:
    """Whether a view is of the forward pass."""
    return not any(workload.mode for workload in view.workloads)


def view_slug(view: DeviceSummary) -> str:
    """Return what the ids of a view end with: the device's slug, then the view's key if it has one."""
    return "-".join(filter(None, [view.device.slug, view.key]))


def view_title(view: DeviceSummary) -> str:
    """Return what a view is called among those of its device.

    Its sets where the summary names it no otherwise, so that a line says what was measured.
    """
    sets = dict.fromkeys(workload.set for workload in view.workloads if workload.set)
    return view.view or ", ".join(sets) or "all workloads"


def fastest(view: DeviceSummary) -> Row | None:
    """Return the first of those that have a rank; None if none has."""
    return next((row for row in view.rows if row.rank == 1), None)


def passing(view: DeviceSummary) -> int:
    """Return how many implementations passed every workload that they were tried on."""
    return sum(row.status is Status.OK for row in view.rows)


def row_title(view: DeviceSummary, implementation: str) -> str:
    """Return the title of an implementation, or its id if the view has no row of it."""
    return next((row.title for row in view.rows if row.implementation == implementation), implementation)


def computes(view: DeviceSummary) -> bool:
    """Whether arithmetic bounds most of what was measured, so that its rate says more than that of the bytes."""
    regimes = [point.regime for row in view.rows for point in row.points if point.regime is not None]
    return 2 * sum(regime is Regime.COMPUTE for regime in regimes) > len(regimes)


def measured_rows(view: DeviceSummary) -> list[Row]:
    """Return the rows that have a time on at least one workload, in the order of the ranking."""
    return [row for row in view.rows if any(point.p50_ms is not None for point in row.points)]


def by_workload(view: DeviceSummary) -> list[tuple[WorkloadSummary, list[Point | None], float | None]]:
    """Return for each workload the points of :func:`measured_rows`, and the shortest right time of them in ms."""
    points = [{point.workload: point for point in row.points} for row in measured_rows(view)]
    lines = []
    for workload in view.workloads:
        found = [of_row.get(workload.name) for of_row in points]
        times = [point.p50_ms for point in found if point and point.p50_ms and point.status is Status.OK]
        lines.append((workload, found, min(times, default=None)))
    return lines
