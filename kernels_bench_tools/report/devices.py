"""A device over all operators: what it is, what it reached, how steady it was, and what was measured on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kernels_bench_tools.report.artifacts import Artifact
from kernels_bench_tools.report.cards import DeviceCard, operator_card
from kernels_bench_tools.report.device_rows import DeviceViews
from kernels_bench_tools.report.format import size
from kernels_bench_tools.report.operators import Operator
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.provenance import Origin, view_origins
from kernels_bench_tools.report.sentinels import (
    SentinelView,
    read_sentinels,
    record_files,
    sentinel_views,
)
from kernels_bench_tools.report.site_paths import device_page
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Environment
from kernels_bench_tools.schema.record_io import RecordHead


@dataclass(frozen=True)
class Ceiling:
    """What a device reached, over all operators."""

    name: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """An operator on a device."""

    title: str
    card: DeviceCard
    origin: Origin
    implementations: int
    workloads: int


@dataclass(frozen=True)
class DeviceView:
    """A device as its page shows it."""

    device: Device
    path: str
    """Site path of its page."""
    facts: Sequence[tuple[str, str]]
    origins: Sequence[Origin]
    ceilings: Sequence[Ceiling]
    sentinels: Sequence[SentinelView]
    operators: Sequence[Measured]


@dataclass(frozen=True)
class KnownDevice:
    """What the site knows of a device, before any page is made."""

    device: Device
    path: str
    operators: Sequence[tuple[Operator, DeviceViews]]


def known_devices(operators: Iterable[Operator]) -> list[KnownDevice]:
    """Return the devices of all operators: GPUs first, then by slug."""
    found: dict[str, list[tuple[Operator, DeviceViews]]] = {}
    for operator in operators:
        for device in operator.devices:
            found.setdefault(device.device.slug, []).append((operator, device))
    known = [KnownDevice(pairs[0][1].device, device_page(slug), pairs) for slug, pairs in found.items()]
    return sorted(known, key=lambda one: (one.device.kind == "cpu", one.device.slug))


def read_readings(
    root: Path, operators: Iterable[Operator], artifacts: Iterable[Artifact]
) -> dict[str, list[RecordHead]]:
    """Return what the records of all operators say of sentinels, by the slug of the device.

    Args:
        root: The project.
        operators: Whose committed records are read.
        artifacts: What cells of this build left.
    """
    files = [artifact.file for artifact in artifacts if artifact.suffix == "jsonl"]
    files += [file for operator in operators for file in record_files(root, operator.folder)]
    found: dict[str, list[RecordHead]] = {}
    for reading in read_sentinels(files):
        if reading.device is not None:
            found.setdefault(reading.device.slug, []).append(reading)
    return found


def device_view(known: KnownDevice, page: Page, readings: Mapping[str, Sequence[RecordHead]]) -> DeviceView:
    """Return what the page of a device shows."""
    views = [view for _, device in known.operators for view in device.views]
    return DeviceView(
        device=known.device,
        path=known.path,
        facts=_facts(row.environment for view in views for row in view.rows),
        origins=view_origins(views),
        ceilings=_ceilings([view.ceilings for view in views]),
        sentinels=sentinel_views(readings.get(known.device.slug, ())),
        operators=[_measured(operator, device, page) for operator, device in known.operators],
    )


def _measured(operator: Operator, device: DeviceViews, page: Page) -> Measured:
    cards = operator_card(operator, page).devices
    return Measured(
        title=operator.title,
        card=next(card for card in cards if card.device.slug == device.device.slug),
        origin=view_origins(device.views)[0] if any(view.rows for view in device.views) else _nowhere(device),
        implementations=len({row.implementation for view in device.views for row in view.rows}),
        workloads=sum(len(view.workloads) for view in device.views),
    )


def _nowhere(device: DeviceViews) -> Origin:
    return Origin(device.device, "", "", [])


def _ceilings(found: Iterable[Mapping[str, float]]) -> list[Ceiling]:
    values: dict[str, list[float]] = {}
    for ceilings in found:
        for name, value in ceilings.items():
            values.setdefault(name, []).append(value)
    return [Ceiling(name, median(them), min(them), max(them)) for name, them in sorted(values.items())]


def _facts(environments: Iterable[Environment]) -> list[tuple[str, str]]:
    """Return what is known of the machine: every value that records of the device have, each once."""
    found: dict[str, dict[str, None]] = {}
    for one in environments:
        told = {
            "Compute capability": one.sm,
            "L2 cache": size(one.l2_bytes) if one.l2_bytes else "",
            "SM clock after a measurement": f"{one.sm_clock_mhz} MHz" if one.sm_clock_mhz else "",
            "Memory clock": f"{one.memory_clock_mhz} MHz" if one.memory_clock_mhz else "",
            "CPU": one.cpu,
            "Threads": str(one.threads or ""),
            "Driver": one.driver,
            "CUDA": one.cuda,
            "torch": one.torch,
            "triton": one.triton,
            "kernels": one.kernels,
            "Python": one.py,
            "Platform": one.plat,
        }
        for name, value in told.items():
            if value:
                found.setdefault(name, {})[value] = None
    return [(name, ", ".join(sorted(values))) for name, values in found.items()]
