"""What every page says of where its numbers come from: device by device, when, with what, from which commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kernels_bench_tools.report.dates import day_range, days
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Environment
from kernels_bench_tools.schema.summary import DeviceSummary, Row


@dataclass(frozen=True)
class Origin:
    """One device's share of a page's numbers."""

    device: Device
    measured: str
    """Days, as printed; empty if no record says when."""
    software: str
    """Driver and versions, as printed."""
    commits: list[tuple[str, str]]
    """Commit, and ``with uncommitted changes`` where records say so; one that no record knows is left out."""


def origins(pairs: Iterable[tuple[DeviceSummary, Row]]) -> list[Origin]:
    """Return where rows come from, one line for each device in the order of the rows."""
    rows: dict[str, list[Row]] = {}
    devices: dict[str, Device] = {}
    for view, row in pairs:
        devices.setdefault(view.device.slug, view.device)
        rows.setdefault(view.device.slug, []).append(row)
    return [_origin(devices[slug], found) for slug, found in rows.items()]


def view_origins(views: Iterable[DeviceSummary]) -> list[Origin]:
    """Return where all rows of these views come from."""
    return origins((view, row) for view in views for row in view.rows)


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
        measured=day_range(days(rows)),
        software=" · ".join(filter(None, software)),
        commits=sorted(commits),
    )


def _versions(environments: Iterable[Environment], pick: Callable[[Environment], str]) -> set[str]:
    return {pick(environment) for environment in environments} - {""}


def _named(name: str, versions: set[str]) -> str:
    return f"{name} {', '.join(sorted(versions))}" if versions else ""
