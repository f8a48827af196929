"""Devices over all operators: environment, measured peaks and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Environment
from kernels_bench_tools.records.summary import DeviceSummary
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.paths import device_page
from kernels_bench_tools.results.tables import DeviceResults
from kernels_bench_tools.text import grouped, size


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
