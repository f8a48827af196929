"""Where the numbers of a page come from: devices, days, software versions and commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Environment
from kernels_bench_tools.schema.summary import DeviceSummary, Row


@dataclass(frozen=True)
class Origin:
    """Origin of a page's numbers from one device."""

    device: Device
    measured: str
    """Days of measurement, as printed; empty if not recorded."""
    software: str
    """Driver and versions, as printed."""
    commits: list[tuple[str, str]]
    """Commit, and ``with uncommitted changes`` or nothing."""


def origins(pairs: Iterable[tuple[DeviceSummary, Row]]) -> list[Origin]:
    """Return the origin of rows, one for each device in the order of the rows."""
    rows: dict[str, list[Row]] = {}
    devices: dict[str, Device] = {}
    for view, row in pairs:
        devices.setdefault(view.device.slug, view.device)
        rows.setdefault(view.device.slug, []).append(row)
    return [_origin(devices[slug], found) for slug, found in rows.items()]


def view_origins(views: Iterable[DeviceSummary]) -> list[Origin]:
    """Return the origin of all rows of these views."""
    return origins((view, row) for view in views for row in view.rows)


def day(timestamp: str) -> str:
    """Return the day of a timestamp, UTC; empty for none.

    >>> day("2026-11-20T23:50:09.350+00:00")
    '2026-11-20'
    """
    return timestamp[:10]


def measured_days(rows: Iterable[Row]) -> str:
    """Return the first and last day on which rows were measured: ``2026-11-18 to 2026-11-20``; empty for none."""
    days = sorted({day(point.measured) for row in rows for point in row.points if point.measured})
    return " to ".join(dict.fromkeys(days[:1] + days[-1:]))


def latest(views: Iterable[DeviceSummary]) -> str:
    """Return the timestamp of the most recent record; empty if there is none."""
    return max((point.measured for view in views for row in view.rows for point in row.points), default="")


def _origin(device: Device, rows: list[Row]) -> Origin:
    environments = [row.environment for row in rows]
    software = [
        _named("driver", {device.driver} if device.driver else _versions(environments, lambda it: it.driver)),
        _named("CUDA", _versions(environments, lambda it: it.cuda)),
        _named("torch", _versions(environments, lambda it: it.torch)),
        _named("triton", _versions(environments, lambda it: it.triton)),
        _named("kernels", _versions(environments, lambda it: it.kernels)),
    ]
    commits = {
        (row.provenance.commit, "with uncommitted changes" if row.provenance.dirty else "")
        for row in rows
        if row.provenance.commit
    }
    return Origin(
        device=device,
        measured=measured_days(rows),
        software=" · ".join(filter(None, software)),
        commits=sorted(commits),
    )


def _versions(environments: Iterable[Environment], pick: Callable[[Environment], str]) -> set[str]:
    return {pick(environment) for environment in environments} - {""}


def _named(name: str, versions: set[str]) -> str:
    return f"{name} {', '.join(sorted(versions))}" if versions else ""
