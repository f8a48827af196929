"""Describe the device and the software of a measurement."""

from __future__ import annotations

import inspect
import os
import platform
import sys
import time
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from kernels_bench_tools.records.device import Device, cpu_device, cuda_device, query_gpu
from kernels_bench_tools.records.record import Environment

WAITED_MS = 0.0
"""Time that this process waited for its turn."""
_START_TIME = 21
"""Index of a process's start in ``/proc/self/stat``, in clock ticks since boot."""
_MAX_START_MS = 3_600_000.0


def torch_device() -> str:
    """Return ``"cuda"`` if there is a CUDA device, else ``"cpu"``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@cache
def describe_device(device: str) -> Device:
    if not device.startswith("cuda"):
        return cpu_device()
    # nvidia-smi ignores CUDA_VISIBLE_DEVICES.
    number = gpu_uuid(device) or (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
    driver = "".join(query_gpu("driver_version", number))
    return cuda_device(torch.cuda.get_device_name(device), driver)


def describe_environment(torch_name: str) -> Environment:
    """Return versions and sizes; the driver and the clocks are in the device and the measurement."""
    versions = imported_packages()
    environment = Environment(
        torch=str(torch.__version__),
        py=platform.python_version(),
        plat=platform.platform(),
        triton=versions.get("triton", ""),
        kernels=versions.get("kernels", ""),
        cpu=cpu_device().name,
        threads=torch.get_num_threads(),
    )
    if torch_name.startswith("cuda"):
        properties = torch.cuda.get_device_properties(torch_name)
        environment.cuda = torch.version.cuda or ""
        environment.gpu = torch.cuda.get_device_name(torch_name)
        environment.sm = f"{properties.major}.{properties.minor}"
        environment.l2_bytes = properties.L2_cache_size
    return environment


def imported_packages() -> dict[str, str]:
    """Return the distributions that this process has imported modules of, name to version."""
    imported = {name.partition(".")[0] for name in tuple(sys.modules)}
    found: dict[str, str] = {}
    for distribution, modules in _distributions():
        if not modules.isdisjoint(imported):
            about = distribution.metadata
            found.setdefault(about["Name"].lower(), about["Version"])
    return dict(sorted(found.items()))


@cache
def _distributions() -> list[tuple[metadata.Distribution, set[str]]]:
    """Return each distribution with its top-level modules.

    ``metadata.packages_distributions`` takes ten times as long: it reads the texts that describe all of them.
    """
    found = []
    for distribution in metadata.distributions():
        if names := distribution.read_text("top_level.txt"):
            modules = set(names.split())
        else:
            listed = (
                line.partition(",")[0] for line in (distribution.read_text("RECORD") or "").splitlines()
            )
            tops = {path.partition("/")[0] for path in listed if path.endswith((".py", ".so"))}
            modules = {inspect.getmodulename(top) or top for top in tops}
        found.append((distribution, modules))
    return found


def describe_affinity() -> str:
    """Return the CPUs that this process may run on, such as ``"0-3,8"``; empty where unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    ranges: list[list[int]] = []
    for cpu in sorted(os.sched_getaffinity(0)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def gpu_uuid(device: str) -> str:
    """Return the UUID of a CUDA device as ``nvidia-smi -L`` prints it; empty for other devices."""
    if not device.startswith("cuda"):
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid is not None else ""


def since_process_start_ms() -> float | None:
    """Return the milliseconds since this process started, apart from waiting, in clock ticks of 10 ms; None if unknown."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        # The second field is the program's name in parentheses, which may contain spaces.
        fields = ["", "", *stat.rpartition(")")[2].split()]
        started = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
        elapsed = 1000 * (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    elapsed -= WAITED_MS
    return elapsed if 0 <= elapsed < _MAX_START_MS else None
