"""Timed calls on a CUDA device: flushed, bracketed by markers, measured by CUPTI or by events."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.measure.cupti import record_activities, split_calls
from kernels_bench_tools.measure.operator import Inputs
from kernels_bench_tools.measure.sampling import Call

# Bound here, so that an implementation that replaces them later changes nothing.
_Event = torch.cuda.Event
_elapsed_ms = torch.cuda.Event.elapsed_time
_synchronize = torch.cuda.synchronize
_sleep: Any = getattr(torch.cuda, "_sleep", None)

MAX_MARKER_MS = 50.0
_CALIBRATION_CYCLES = 2_000_000


class ReadFlush:
    """Evicts the L2 cache by reading, which leaves clean lines: no write-back is paid for later.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: str) -> None:
        l2_bytes: int = torch.cuda.get_device_properties(device).L2_cache_size
        size = max(4 * l2_bytes, 64 * 2**20)
        self._buffer = torch.zeros(size // 4, dtype=torch.float32, device=device)

    def __call__(self) -> None:
        """Queue the read."""
        self._buffer.sum()


class CudaTimer:
    """Times calls of one function with one input set on the current stream.

    Args:
        function: The implementation.
        inputs: Its arguments.
        device: The CUDA device that they are on.
        cold: Whether to flush the L2 cache before each call.
    """

    def __init__(
        self, function: Callable[..., Any], inputs: Inputs, device: str, *, cold: bool = True
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._flush: Callable[[], None] = ReadFlush(device) if cold else _nothing
        # While the opening marker spins the host queues the whole call, so that the device never waits
        # for the host inside one; twice the time leaves room for the profiler's own cost.
        marker_ms = min(2 * self._submit_ms() + 0.02, MAX_MARKER_MS)
        self._opening_cycles = int(marker_ms * _cycles_per_ms())

    def by_events(self, count: int) -> list[Call]:
        """Time ``count`` calls with a pair of events each, which costs some 4 us per call."""
        pairs = [(_Event(enable_timing=True), _Event(enable_timing=True)) for _ in range(count)]
        for start, end in pairs:
            self._flush()
            _sleep(self._opening_cycles)
            start.record()
            self._function(*self._inputs)
            end.record()
        _synchronize()
        return [Call(_elapsed_ms(start, end)) for start, end in pairs]

    def by_kernels(self, count: int) -> list[Call]:
        """Time ``count`` calls by the durations of their kernels.

        Raises:
            MarkersMissingError: The profiler did not see everything.
            NoKernelError: A call launched nothing.
        """
        return split_calls(record_activities(lambda: self._bracketed(count)), count)

    def _bracketed(self, count: int) -> None:
        for _ in range(count):
            self._flush()
            _sleep(self._opening_cycles)
            self._function(*self._inputs)
            _sleep(1)
        # Keeps the last marker away from the session's end, where clocks may disagree.
        self._flush()

    def _submit_ms(self) -> float:
        times = []
        for _ in range(5):
            _synchronize()
            start = perf_counter_ns()
            self._function(*self._inputs)
            times.append((perf_counter_ns() - start) / 1e6)
        _synchronize()
        return median(times)


def _nothing() -> None:
    pass


def _cycles_per_ms() -> float:
    """Return the fastest of a few clock readings: an idle card starts slow, and would spin too short."""
    rates = []
    for _ in range(5):
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        start.record()
        _sleep(_CALIBRATION_CYCLES)
        end.record()
        _synchronize()
        rates.append(_CALIBRATION_CYCLES / max(_elapsed_ms(start, end), 1e-3))
    return max(rates)
