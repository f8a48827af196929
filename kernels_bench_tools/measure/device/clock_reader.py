"""Print a GPU's clocks, power, temperature and throttle reasons repeatedly: a script for a separate process.

Run as ``python -P clock_reader.py GPU-<uuid> INTERVAL_SECONDS PARENT_PID``; prints one JSON array per sample.
A thread instead of a process would compete for the GIL with the measurement. It calls NVML through ctypes, so that
it needs no package. It changes no settings.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

_SM, _MEMORY = 1, 2
_MAX_PROCESSES = 256
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


class _Process(ctypes.Structure):
    """``nvmlProcessInfo_t`` of ``nvmlDeviceGetComputeRunningProcesses_v3``."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Gpu:
    """A GPU in NVML, by its UUID with ``GPU-``; raises ``OSError`` if NVML is missing or does not list it."""

    def __init__(self, uuid: str) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        if self._nvml.nvmlInit_v2() != 0:
            raise OSError("NVML cannot be initialized")
        if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle)) != 0:
            raise OSError(f"NVML does not list {uuid}")
        self._reasons = next(name for name in _REASONS if hasattr(self._nvml, name))

    def sample(self) -> list[Any]:
        """Return the time, SM and memory MHz, watts, degrees, reasons as a bit mask, compute process ids, joules so far."""
        return [
            time.monotonic(),
            self._value("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM),
            self._value("nvmlDeviceGetClockInfo", ctypes.c_uint, _MEMORY),
            self._value("nvmlDeviceGetPowerUsage", ctypes.c_uint) / 1000,
            self._value("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
            self._value(self._reasons, ctypes.c_ulonglong),
            self._processes(),
            self._value("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong) / 1000,
        ]

    def _value(self, function: str, kind: type[ctypes.c_uint | ctypes.c_ulonglong], *arguments: int) -> int:
        """Return the result of an NVML query; 0 if the GPU does not support it."""
        value = kind()
        given = [ctypes.c_uint(argument) for argument in arguments]
        status = getattr(self._nvml, function)(self._handle, *given, ctypes.byref(value))
        return int(value.value) if status == 0 else 0

    def _processes(self) -> list[int]:
        count = ctypes.c_uint(_MAX_PROCESSES)
        found = (_Process * _MAX_PROCESSES)()
        query = getattr(self._nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if query is None or query(self._handle, ctypes.byref(count), found) != 0:
            return []
        return [found[index].pid for index in range(count.value)]


def main(uuid: str, interval: float, parent: int) -> None:
    gpu = Gpu(uuid)
    while os.getppid() == parent:
        print(json.dumps(gpu.sample()), flush=True)
        time.sleep(interval)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
