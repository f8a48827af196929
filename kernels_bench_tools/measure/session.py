"""What a process measures once for all workloads: the device's peaks, sentinels and clocks."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from math import inf

from kernels_bench_tools.measure.correctness.check import SmallerResults
from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.device.environment import gpu_uuid
from kernels_bench_tools.measure.device.peaks import measure_peaks
from kernels_bench_tools.measure.device.sentinels import Sentinels
from kernels_bench_tools.measure.timing.caches import cache_bytes
from kernels_bench_tools.measure.timing.cpu import CoreWaits
from kernels_bench_tools.records.record import Work
from kernels_bench_tools.records.roofline import CPU_MARGIN, TRAFFIC_MARGIN, Limits, RooflineResult, assess

BUSY_SECONDS = 60.0
"""After a CPU was too busy to measure its peaks, which takes two seconds of each implementation's time."""
_busy: dict[str, float] = {}
"""When that was, by device."""
PEAK_RETRIES = 2
"""How often the peaks are measured again before a time counts as above the roofline."""


@dataclass(kw_only=True)
class BenchmarkSession:
    """A measuring process, from before the implementation is loaded to after its last workload."""

    device: str
    clocks: ClockSampler
    separate: bool = False
    """Whether implementations run in other processes than this one."""
    peaks: dict[str, float] = field(default_factory=dict)
    """GB/s, or TFLOP/s for a matmul; empty if not measured."""
    tried_peaks: set[str] = field(default_factory=set)
    """Those that were measured, or that the device does not support."""
    smaller_results: SmallerResults = field(default_factory=SmallerResults)
    sentinels: Sentinels
    sentinel_ms: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds before the first workload and, after :meth:`close`, after the last; CUDA only."""

    @property
    def null_ms(self) -> float:
        """Time of an empty kernel; 0 if not measured."""
        return self.sentinel_ms["null"][0] if "null" in self.sentinel_ms else 0.0

    def measure_peaks(self, names: Set[str]) -> None:
        """Measure these peaks, unless they are known: a tenth to half a second each.

        What a CPU reaches while threads wait for its cores is no peak: it is measured again for an implementation after a minute.
        """
        wanted, start = names - self.tried_peaks, time.monotonic()
        if wanted and start - _busy.get(self.device, -inf) > BUSY_SECONDS:
            waits = CoreWaits(os.getpid())
            found = _peaks(self.device, frozenset(wanted))
            if not self.device.startswith("cuda") and waits.read(0).disturbed:
                _peaks.cache_clear()
                _busy[self.device] = start
                return
            self.peaks.update(found)
            self.tried_peaks.update(wanted)

    def assess(self, work: Work, ms: float, dtype: str) -> RooflineResult:
        """Compare a time with the roofline; before it counts as impossible, the peaks are measured again."""
        margin = TRAFFIC_MARGIN if self.device.startswith("cuda") else CPU_MARGIN
        limits = Limits(self.peaks, self.null_ms, cache_bytes(self.device), margin)
        found = assess(work, ms, dtype, limits)
        for _ in range(PEAK_RETRIES if self.peaks else 0):
            if not found.above:
                break
            for name, value in measure_peaks(self.device, self.peaks).items():
                self.peaks[name] = max(value, self.peaks.get(name, 0.0))
            found = assess(work, ms, dtype, limits)  # with what has just been measured
        return found

    def measure_sentinels(self) -> None:
        """Time the sentinels, before the first workload and after the last."""
        for name, ms in self.sentinels.measure().items():
            self.sentinel_ms.setdefault(name, []).append(ms)

    def close(self) -> None:
        # Fails on a device that an implementation has broken; its records have the reason.
        with suppress(RuntimeError):
            self.measure_sentinels()


@cache
def _peaks(device: str, names: frozenset[str]) -> dict[str, float]:
    """Return peaks of a device, measured once in a process."""
    return measure_peaks(device, names)


@contextmanager
def open_session(device: str) -> Iterator[BenchmarkSession]:
    """Yield a session; load the implementation within it."""
    # Before the guard is made: the sampler is a process, and the profiler starts threads.
    with ClockSampler(gpu_uuid(device)) as clocks:
        session = BenchmarkSession(device=device, clocks=clocks, sentinels=Sentinels(device))
        session.measure_sentinels()
        # torch alone is a million objects: without them, collecting after each workload takes 2 ms instead of 150.
        gc.freeze()
        yield session
