"""Devices over all operators: environment, measured peaks, sentinels and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from markupsafe import Markup

from kernels_bench_tools.records.codec import RecordHead, read_heads
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Environment
from kernels_bench_tools.records.summary import DeviceSummary
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.paths import device_page
from kernels_bench_tools.report.sparklines import sentinel_sparkline
from kernels_bench_tools.results.tables import DeviceResults
from kernels_bench_tools.text import grouped, size

_MAX_MARKS = 400
"""Of more readings, every n-th is drawn."""


@dataclass(frozen=True)
class SentinelHistory:
    """One sentinel on one device."""

    name: str
    count: int
    """Processes that timed it."""
    median: float
    low: float
    high: float
    chart: Markup

    @property
    def spread(self) -> float:
        """Difference of the highest and the lowest median of a process, relative to the median of all."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclass(frozen=True)
class ReportDevice:
    """A device of the report, with its operators."""

    device: Device
    path: str
    """Site path of its page."""
    operators: Sequence[tuple[OperatorReport, DeviceResults]]

    @property
    def views(self) -> list[DeviceSummary]:
        """The views of all operators."""
        return [view for _, device in self.operators for view in device.views]


def find_devices(operators: Iterable[OperatorReport]) -> list[ReportDevice]:
    """Return the devices of all operators: GPUs first, then by slug."""
    found = grouped(
        (device.device.slug, (operator, device)) for operator in operators for device in operator.devices
    )
    devices = [ReportDevice(pairs[0][1].device, device_page(slug), pairs) for slug, pairs in found.items()]
    return sorted(devices, key=lambda one: (one.device.kind == "cpu", one.device.slug))


def measured_peaks(device: ReportDevice) -> list[tuple[str, float, float, float]]:
    """Return name, median, minimum and maximum of each measured peak of a device over all operators."""
    values = grouped(peak for view in device.views for peak in view.ceilings.items())
    return [(name, median(them), min(them), max(them)) for name, them in sorted(values.items())]


def environment_facts(device: Device, environments: Iterable[Environment]) -> list[tuple[str, str]]:
    """Return what is known of environments of a device: every value, each once."""
    facts = [
        {
            "Driver": one.driver or device.driver,
            "CUDA": one.cuda,
            "Compute capability": one.sm,
            "L2 cache": size(one.l2_bytes) if one.l2_bytes else "",
            "SM clock": f"{one.sm_clock_mhz} MHz" if one.sm_clock_mhz else "",
            "Memory clock": f"{one.memory_clock_mhz} MHz" if one.memory_clock_mhz else "",
            "CPU": one.cpu,
            "Threads": str(one.threads or ""),
            "torch": one.torch,
            "triton": one.triton,
            "kernels": one.kernels,
            "Python": one.py,
            "Platform": one.plat,
        }
        for one in environments
    ]
    found = grouped((name, value) for one in facts for name, value in one.items() if value)
    return [
        (name, "; ".join(sorted(set(values), key=lambda it: (len(it), it)))) for name, values in found.items()
    ]


def read_readings(files: Iterable[Path]) -> dict[str, list[RecordHead]]:
    """Return the first record with sentinels of each process, by the slug of the device."""
    found: dict[str, dict[tuple[str, str], RecordHead]] = {}
    for file in files:
        for head in read_heads(file):
            if head.sentinels and head.device:
                found.setdefault(head.device.slug, {}).setdefault((head.run, head.impl), head)
    return {slug: list(heads.values()) for slug, heads in found.items()}


def sentinel_histories(readings: Sequence[RecordHead]) -> list[SentinelHistory]:
    """Return the history of each sentinel of one device."""
    ordered = sorted(readings, key=lambda reading: (reading.ts, reading.impl))
    names = dict.fromkeys(name for reading in ordered for name in reading.sentinels)
    found = []
    for name in sorted(names):
        series = [
            (one.ts, median(one.sentinels[name]))
            for one in ordered
            if one.sentinels.get(name) and min(one.sentinels[name]) > 0
        ]
        if series:
            values = [value for _, value in series]
            chart = sentinel_sparkline(name, series[:: -(-len(series) // _MAX_MARKS)])
            found.append(SentinelHistory(name, len(series), median(values), min(values), max(values), chart))
    return found
