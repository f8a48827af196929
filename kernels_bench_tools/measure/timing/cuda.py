"""Timed calls on a CUDA device: flushed, bracketed by markers, measured by CUPTI or by events."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import cycle
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.measure.operator import Inputs
from kernels_bench_tools.measure.timing.caches import fits_beside
from kernels_bench_tools.measure.timing.cupti import Batch, record_activities, split_batch
from kernels_bench_tools.measure.timing.sampling import Call

# Bound here, so that an implementation that replaces them later changes nothing.
_Event = torch.cuda.Event
_elapsed_ms = torch.cuda.Event.elapsed_time
_synchronize = torch.cuda.synchronize
_sleep: Any = getattr(torch.cuda, "_sleep", None)
_rest = time.sleep

MAX_MARKER_MS = 50.0
REST_CALLS = 4
"""Before a cold call the card rests for this many calls' time, or a kernel that draws much power runs against the
power limit that its predecessors have reached. On an H200, medians of 60 calls varied by 0.6 to 3.2 % between processes
without rest (attention, a large matmul), and by 0.1 % with it."""
MAX_REST_MS = 10.0
MIN_RESTED_MS = 0.05
"""Shorter calls are rarer than what lies between them anyway."""
KEPT_CALLS = 3
"""How many outputs of calls like the timed ones are kept for checking, besides the last one."""
_CALIBRATION_CYCLES = 2_000_000
_CLOSING_CYCLES = 1
_SANE_MHZ = range(100, 5000)


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
    """Times calls of one function on the current stream.

    ``CudaTimer(function, sets[0], device, cold=False, more_inputs=sets[1:])`` goes round input sets without
    a flush, which is cold as well where they exceed the cache together.

    Args:
        function: The implementation.
        inputs: Its arguments.
        device: The CUDA device that they are on.
        cold: Whether to flush the L2 cache before each call.
        more_inputs: Further input sets; calls go round all of them in turn.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Inputs,
        device: str,
        *,
        cold: bool = True,
        more_inputs: Sequence[Inputs] = (),
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._device = device
        self._turn = cycle([inputs, *more_inputs])
        self._flush: Callable[[], None] = ReadFlush(device) if cold else _nothing
        self._flush_kernels = _flush_kernels(device) if cold else {}
        # While the opening marker spins the host queues the whole call, so that the device never waits
        # for the host inside one; twice the time leaves room for the profiler's own cost.
        self.submit_ms = self._submit_ms()
        """About how long the host takes to issue one call."""
        marker_ms = min(2 * self.submit_ms + 0.02, MAX_MARKER_MS)
        self._opening_cycles = int(marker_ms * cycles_per_ms())
        self.rest_seconds = self._rest_needed() if cold else 0.0
        """How long the card rests before each call."""
        self.escaped: Counter[str] = Counter()
        """Activities outside of the timed stream's order, by name, over all batches so far."""
        self._clock_mhz: list[float] = []

    def by_events(self, count: int) -> list[Call]:
        """Time ``count`` calls with a pair of events each, which costs some 4 us per call."""
        pairs = [(_Event(enable_timing=True), _Event(enable_timing=True)) for _ in range(count)]
        for start, end in pairs:
            inputs = next(self._turn)
            self._settle()
            self._flush()
            _sleep(self._opening_cycles)
            start.record()
            self._function(*inputs)
            end.record()
        _synchronize()
        return [Call(_elapsed_ms(start, end)) for start, end in pairs]

    def by_kernels(self, count: int) -> list[Call]:
        """Time ``count`` calls by the durations of their kernels.

        Raises:
            MarkersMissingError: The profiler did not see everything.
            NoKernelError: A call launched nothing.
        """
        return self._split(record_activities(lambda: self._bracketed(count)), count).calls

    def keep_outputs(self, count: int) -> list[tuple[Inputs, Any]]:
        """Make ``count`` further calls just like the timed ones; return inputs and output of a few.

        They are ``KEPT_CALLS`` at random, so that nobody can know which are looked at, and the last one.
        Outputs too large to keep several of are not kept, but for the last one.
        """
        chosen = choose_calls(count)
        kept: list[tuple[Inputs, Any]] = []
        self._split(record_activities(lambda: self._bracketed(count, chosen, kept)), count)
        return kept

    @property
    def clock_mhz(self) -> int:
        """The multiprocessors' clock while the opening markers spun; 0 if what they say makes no sense."""
        if not self._clock_mhz:
            return 0
        found = round(median(self._clock_mhz))
        return found if found in _SANE_MHZ else 0

    def _bracketed(
        self,
        count: int,
        chosen: Collection[int] = (),
        kept: list[tuple[Inputs, Any]] | None = None,
    ) -> None:
        for number in range(count):
            inputs = next(self._turn)
            self._settle()
            self._flush()
            _sleep(self._opening_cycles)
            output = self._function(*inputs)
            _sleep(_CLOSING_CYCLES)
            last = number == count - 1
            if kept is not None and number in chosen and (last or fits_beside(output, self._device)):
                kept.append((inputs, output))
            del output  # or two outputs would be alive during the next call
        # Keeps the last marker away from the session's end, where clocks may disagree.
        self._flush()

    def _settle(self) -> None:
        """Let the card rest, idle, before a call that may draw much power."""
        if self.rest_seconds:
            _synchronize()
            _rest(self.rest_seconds)

    def _rest_needed(self) -> float:
        """Return how many seconds to rest before each call."""
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        _synchronize()
        start.record()
        self._function(*self._inputs)
        end.record()
        _synchronize()
        ms = _elapsed_ms(start, end)
        return min(REST_CALLS * ms, MAX_REST_MS) / 1e3 if ms >= MIN_RESTED_MS else 0.0

    def _split(self, activities: Sequence[Any], count: int) -> Batch:
        own = {name: launches * (count + 1) for name, launches in self._flush_kernels.items()}
        batch = split_batch(activities, count, own)
        self.escaped.update(batch.escaped)
        # The closing marker spins for nothing: what it takes is what launching and ending one costs.
        self._clock_mhz += [
            (self._opening_cycles - _CLOSING_CYCLES) / (opening - closing) * 1000
            for opening, closing in batch.marker_ns
            if opening > closing
        ]
        return batch

    def _submit_ms(self) -> float:
        times = []
        for _ in range(5):
            _synchronize()
            start = perf_counter_ns()
            self._function(*self._inputs)
            times.append((perf_counter_ns() - start) / 1e6)
        _synchronize()
        return median(times)


def choose_calls(count: int) -> frozenset[int]:
    """Return the numbers of the calls whose outputs are kept: a few at random, and the last."""
    return frozenset({*random.SystemRandom().sample(range(count), min(KEPT_CALLS, count)), count - 1})


def _nothing() -> None:
    pass


@cache
def _flush_kernels(device: str) -> Mapping[str, int]:
    """Return how often one flush launches which kernel, found by watching flushes alone."""
    flush, times = ReadFlush(device), 4
    flush()  # loads what it needs

    def flushes() -> None:
        for _ in range(times):
            flush()

    seen: Counter[str] = Counter()
    for _ in range(3):  # a session may lose activities, never invent some
        seen |= Counter(activity.name for activity in record_activities(flushes))
    return {name: -(-count // times) for name, count in seen.items()}


def cycles_per_ms() -> float:
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


def spin(ms: float, cycles: float) -> None:
    """Queue a kernel that spins for about ``ms`` milliseconds, at ``cycles`` per millisecond."""
    _sleep(int(ms * cycles))
