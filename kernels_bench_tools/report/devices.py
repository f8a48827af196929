"""Devices over all operators: environment, measured peaks, sentinels and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kernels_bench_tools.report.cards import DeviceCard, operator_card
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import device_page
from kernels_bench_tools.report.provenance import Origin, view_origins
from kernels_bench_tools.report.rows import DeviceResults
from kernels_bench_tools.report.sentinels import (
    SentinelHistory,
    sentinel_histories,
)
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Environment
from kernels_bench_tools.schema.record_io import RecordHead
from kernels_bench_tools.text import size


@dataclass(frozen=True)
class PeakRange:
    """A measured peak of a device over all operators."""

    name: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class OperatorOnDevice:
    """An operator in the table of a device."""

    title: str
    card: DeviceCard
    origin: Origin | None
    """None if nothing was measured."""
    implementations: int
    workloads: int


@dataclass(frozen=True)
class DeviceSummaryPage:
    """What the page of a device shows."""

    device: Device
    path: str
    facts: Sequence[tuple[str, str]]
    origins: Sequence[Origin]
    peaks: Sequence[PeakRange]
    sentinels: Sequence[SentinelHistory]
    operators: Sequence[OperatorOnDevice]


@dataclass(frozen=True)
class ReportDevice:
    """A device of the report, with its operators."""

    device: Device
    path: str
    """Site path of its page."""
    operators: Sequence[tuple[OperatorReport, DeviceResults]]


def find_devices(operators: Iterable[OperatorReport]) -> list[ReportDevice]:
    """Return the devices of all operators: GPUs first, then by slug."""
    found: dict[str, list[tuple[OperatorReport, DeviceResults]]] = {}
    for operator in operators:
        for device in operator.devices:
            found.setdefault(device.device.slug, []).append((operator, device))
    devices = [ReportDevice(pairs[0][1].device, device_page(slug), pairs) for slug, pairs in found.items()]
    return sorted(devices, key=lambda one: (one.device.kind == "cpu", one.device.slug))


def device_summary(
    known: ReportDevice, page: Page, readings: Mapping[str, Sequence[RecordHead]]
) -> DeviceSummaryPage:
    """Return what the page of a device shows."""
    views = [view for _, device in known.operators for view in device.views]
    return DeviceSummaryPage(
        device=known.device,
        path=known.path,
        facts=_facts(row.environment for view in views for row in view.rows),
        origins=view_origins(views),
        peaks=_peaks([view.ceilings for view in views]),
        sentinels=sentinel_histories(readings.get(known.device.slug, ())),
        operators=[_operator(operator, device, page) for operator, device in known.operators],
    )


def _operator(operator: OperatorReport, device: DeviceResults, page: Page) -> OperatorOnDevice:
    cards = operator_card(operator, page).devices
    return OperatorOnDevice(
        title=operator.title,
        card=next(card for card in cards if card.device.slug == device.device.slug),
        origin=next(iter(view_origins(device.views)), None),
        implementations=len({row.implementation for view in device.views for row in view.rows}),
        workloads=sum(len(view.workloads) for view in device.views),
    )


def _peaks(found: Iterable[Mapping[str, float]]) -> list[PeakRange]:
    values: dict[str, list[float]] = {}
    for peaks in found:
        for name, value in peaks.items():
            values.setdefault(name, []).append(value)
    return [PeakRange(name, median(them), min(them), max(them)) for name, them in sorted(values.items())]


def _facts(environments: Iterable[Environment]) -> list[tuple[str, str]]:
    """Return the environment of the device: every value in its records, each once."""
    found: dict[str, dict[str, None]] = {}
    for one in environments:
        facts = {
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
        for name, value in facts.items():
            if value:
                found.setdefault(name, {})[value] = None
    return [(name, ", ".join(sorted(values))) for name, values in found.items()]
