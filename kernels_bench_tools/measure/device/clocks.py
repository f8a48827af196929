"""Clocks, power, throttling and other processes of a GPU during a measurement, sampled by another process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

from kernels_bench_tools.measure.device import clock_reader
from kernels_bench_tools.own_process import module_variables, python_command
from kernels_bench_tools.records.record import Clocks, Flag

INTERVAL_SECONDS = 0.04
READY_SECONDS = 5.0
IDLE = "gpu_idle"
POWER_CAP = "sw_power_cap"
REASONS = {
    0x1: IDLE,
    0x2: "applications_clocks_setting",
    0x4: POWER_CAP,
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's mask of clock event reasons."""
SLOWING = {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", POWER_CAP}
CLOCK_DROP = 0.03
"""A GPU near its power limit always reports it; it counts as throttled if its clock fell by more than this."""


@dataclass(frozen=True)
class ClockSample:
    seconds: float
    """On the monotonic clock, which is common to all processes."""
    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    reasons: frozenset[str]
    pids: tuple[int, ...]
    joules: float = 0.0
    """Energy since the driver was loaded; always 0 on GPUs that do not count it."""

    @classmethod
    def parse(cls, line: str) -> ClockSample:
        """Return the sample in a line of the reader; raise ``ValueError`` for other text, such as a cut-off line."""
        seconds, sm, memory, power, temperature, mask, pids, joules = json.loads(line)
        reasons = frozenset(name for bit, name in REASONS.items() if mask & bit)
        return cls(seconds, sm, memory, power, temperature, reasons, tuple(pids), joules)


class ClockSampler:
    """Samples the GPU of this UUID during a ``with`` block, from another process; without a UUID or NVML nothing."""

    def __init__(self, uuid: str, command: Sequence[str] = ()) -> None:
        reader = python_command(clock_reader.__file__, uuid, str(INTERVAL_SECONDS), str(os.getpid()))
        self._command = [*command] or (reader if uuid else [])
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._path = Path()

    def __enter__(self) -> ClockSampler:
        if not self._command:
            return self
        # A file, not a pipe, which would block the reader when full.
        self._output = tempfile.NamedTemporaryFile(prefix="kbt-clocks-")
        self._path = Path(self._output.name)
        with suppress(OSError):
            variables, null = module_variables(os.environ), subprocess.DEVNULL
            self._process = subprocess.Popen(
                self._command, env=variables, stdin=null, stdout=self._output, stderr=null
            )
        deadline = time.monotonic() + READY_SECONDS
        while self._process and self._process.poll() is None and time.monotonic() < deadline:
            if self._path.stat().st_size:
                break
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._output = None

    def samples(self, start: float, end: float) -> list[ClockSample]:
        """Return the samples between two times of the monotonic clock."""
        if self._output is None:
            return []
        found = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                found.append(ClockSample.parse(line))
        return [one for one in found if start <= one.seconds <= end]


def summarize_clocks(
    samples: Sequence[ClockSample], in_band_mhz: int = 0, processes: int = 1
) -> Clocks | None:
    """Summarize the samples while the device was busy; None if nothing is known. ``processes`` of ours use it."""
    busy: Sequence[Any] = [one for one in samples if IDLE not in one.reasons] or samples
    if not busy:
        return Clocks(in_band_mhz=in_band_mhz) if in_band_mhz else None
    reasons = frozenset[str]().union(*(one.reasons for one in busy)) - {IDLE}
    if POWER_CAP in reasons:
        capped = min(one.sm_mhz for one in busy if POWER_CAP in one.reasons)
        if capped >= (1 - CLOCK_DROP) * max(one.sm_mhz for one in busy):
            reasons -= {POWER_CAP}
    # Processes are counted, since a container may list ours under other numbers.
    return Clocks(
        sm_mhz=round(median(one.sm_mhz for one in busy)),
        sm_mhz_min=min(one.sm_mhz for one in busy),
        memory_mhz=round(median(one.memory_mhz for one in busy)),
        in_band_mhz=in_band_mhz,
        power_w=round(max(one.power_w for one in busy), 1),
        temperature_c=max(one.temperature_c for one in busy),
        throttle=sorted(reasons),
        other_processes=max(max(0, len(set(one.pids)) - processes) for one in busy),
        samples=len(samples),
    )


def mean_watts(samples: Sequence[ClockSample]) -> float | None:
    """Return the power by the energy counter, from the first to the last sample; None if it was not counted."""
    first, last = samples[0], samples[-1]
    joules = last.joules - first.joules
    return joules / (last.seconds - first.seconds) if joules > 0 else None


def clock_flags(clocks: Clocks | None) -> list[Flag]:
    if clocks is None:
        return []
    flags = [Flag.THROTTLED] if SLOWING.intersection(clocks.throttle) else []
    return [*flags, Flag.NEIGHBOUR] if clocks.other_processes else flags
