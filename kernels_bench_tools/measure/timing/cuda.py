"""Timed calls on a CUDA device: after a cache flush, between markers, measured by CUPTI or by events."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.measure.operator import Inputs, size_in_bytes, tensors_of
from kernels_bench_tools.measure.timing.caches import flush_bytes
from kernels_bench_tools.measure.timing.cupti import Batch, record_activities, split_batch
from kernels_bench_tools.measure.timing.sampling import MIN_SAMPLES, Call, affordable

# Bound here, so that an implementation cannot replace them later.
_Event = torch.cuda.Event
_elapsed_ms = torch.cuda.Event.elapsed_time
_synchronize = torch.cuda.synchronize
_empty = torch.empty
_sleep: Any = getattr(torch.cuda, "_sleep", None)
_idle = time.sleep

MAX_MARKER_MS = 50.0
IDLE_CALLS = 1
"""The GPU is idle for this many calls' time before a cold call: a kernel that draws much power would otherwise be
slowed by the power limit that earlier calls have reached. On an H200, a matmul of 8192 x 8192 takes 7 % longer without idle
time, and medians of 60 calls vary by 3.2 %; with one call's time it takes as long as with four, and they vary by 0.1 %."""
MAX_IDLE_MS = 10.0
MIN_IDLE_CALL_MS = 0.05
"""Shorter calls need no idle time: the flush between them takes longer."""
SMALL_OUTPUT_BYTES = 2**20
"""After a call with such an output, memory of its size is kept unused, so that intermediate results of the next one are
elsewhere. Otherwise all calls of a batch have them at one address, which makes short calls fast or slow together."""
HOST_SECONDS = 0.1
"""Time for the host's part of calls; at least six calls are made in any case."""
QUEUE = 800
"""Kernels that can be queued without waiting for the device: the queue holds about 1024."""
MAX_SPIN_MS = 200.0
COPY = "Memcpy DtoD (Device -> Device)"
"""What CUPTI calls a copy within the device."""
_CALIBRATION_CYCLES = 2_000_000
_CLOSING_CYCLES = 1
_SANE_MHZ = range(100, 5000)


_PERSISTING_L2_LIMIT = 6
try:
    _driver: Any = ctypes.CDLL("libcuda.so.1")
except OSError:  # another vendor's
    _driver = None


def _end_persisting() -> None:
    """Make lines that an implementation keeps in L2 ordinary ones, which a flush evicts, and let it keep no others."""
    if _driver is not None:
        _driver.cuCtxSetLimit(_PERSISTING_L2_LIMIT, ctypes.c_size_t(0))
        _driver.cuCtxResetPersistingL2Cache()


class ReadFlush:
    """Evicts the L2 cache by reading, which leaves clean lines, without write-backs during the call."""

    def __init__(self, device: str) -> None:
        self._buffer = torch.zeros(flush_bytes(device) // 4, dtype=torch.float32, device=device)

    def __call__(self) -> None:
        _end_persisting()
        self._buffer.sum()


class CudaTimer:
    """Times calls of one function; ``cold`` flushes the L2 cache before each.

    ``following`` returns the arguments of each call, by default ``inputs``, after no more activities of the device than
    ``changes`` says by name; ``fresh`` those of a call that is not part of a batch.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Inputs,
        device: str,
        *,
        cold: bool = True,
        following: Callable[[], Inputs] | None = None,
        changes: Mapping[str, int] | None = None,
        keep: bool = False,
        fresh: Callable[[], Inputs] | None = None,
    ) -> None:
        self._function = function
        self._fresh, self._following = fresh or (lambda: inputs), following or (lambda: inputs)
        self._keep, self._device = keep, device
        self.outputs: list[Any] = []
        """Of all calls of the last batch, if they are kept."""
        self._unused: list[torch.Tensor] = []
        self.output_bytes = 0
        """Of one call."""
        self._flush: Callable[[], None] = ReadFlush(device) if cold else lambda: None
        self._own = Counter(_flush_kernels(device) if cold else {}) + Counter(changes)
        # The host queues the whole call while the opening marker spins, so that the device never waits for the
        # host within a call. Twice the time allows for the profiler's overhead.
        self.submit_ms = self._submit_ms()
        """Approximate host time to issue one call."""
        marker_ms = min(2 * self.submit_ms + 0.02, MAX_MARKER_MS)
        self._opening_cycles = int(marker_ms * cycles_per_ms())
        self.idle_seconds = self._idle_needed() if cold else 0.0
        """Idle time before each call."""
        self.escaped: Counter[str] = Counter()
        """Number of escaped activities by name, over all batches so far."""
        self._clock_mhz: list[float] = []

    def by_events(self, count: int) -> list[Call]:
        """Time ``count`` calls with a pair of events each, which adds about 4 us per call."""
        self.clear()
        pairs = [(_Event(enable_timing=True), _Event(enable_timing=True)) for _ in range(count)]
        for start, end in pairs:
            inputs = self._following()
            self._settle()
            self._flush()
            _sleep(self._opening_cycles)
            start.record()
            output = self._function(*inputs)
            end.record()
            self._release(output)
            del output
        _synchronize()
        return [Call(_elapsed_ms(start, end)) for start, end in pairs]

    def by_kernels(self, count: int) -> list[Call]:
        """Time calls by their kernels; raise ``MarkersMissingError`` or ``NoKernelError`` if they are not all known."""
        self.clear()
        return self._split(record_activities(lambda: self._bracketed(count)), count).calls

    def without_pause(self, count: int) -> list[Call]:
        """Time ``count`` calls, between which there is nothing else, by one pair of events: the mean as a single one."""
        self.clear()
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        start.record()
        for _ in range(count):
            self.outputs.append(self._function(*self._following()))
        end.record()
        _synchronize()
        return [Call(_elapsed_ms(start, end) / count)]

    def host_submit(self, device_ms: float, kernels: int, at_once: int) -> list[Call]:
        """Time the host's part of calls, while a spinning kernel keeps the device busy and the queue has room.

        ``device_ms`` and ``kernels`` are those of a call; the arguments of ``at_once`` calls fit into memory.
        """
        batch = max(1, min(30, at_once, QUEUE // max(kernels, 1)))
        spin_ms = min(1.5 * batch * self.submit_ms + 0.1, MAX_SPIN_MS)
        round_seconds = (spin_ms + batch * (device_ms + self.submit_ms)) / 1e3
        wanted = affordable(HOST_SECONDS, round_seconds / batch)
        spinning = int(spin_ms * cycles_per_ms())
        calls: list[Call] = []
        start = perf_counter()
        while len(calls) < wanted and (len(calls) < MIN_SAMPLES or perf_counter() - start < HOST_SECONDS):
            given = [self._fresh() for _ in range(min(batch, wanted - len(calls)))]
            _synchronize()
            _sleep(spinning)
            for inputs in given:
                before = perf_counter_ns()
                output = self._function(*inputs)
                calls.append(Call((perf_counter_ns() - before) / 1e6))
                del output
        _synchronize()
        return calls

    @property
    def clock_mhz(self) -> int:
        """The multiprocessors' clock during the opening markers; 0 if it is implausible."""
        if not self._clock_mhz:
            return 0
        found = round(median(self._clock_mhz))
        return found if found in _SANE_MHZ else 0

    def _bracketed(self, count: int) -> None:
        for _ in range(count):
            inputs = self._following()
            self._settle()
            self._flush()
            _sleep(self._opening_cycles)
            output = self._function(*inputs)
            _sleep(_CLOSING_CYCLES)
            self._release(output)
            del output  # otherwise two outputs are alive during the next call
        # Separates the last marker from the end of the session, where clocks may disagree.
        self._flush()

    def clear(self) -> None:
        self.outputs.clear()
        self._unused.clear()

    def _release(self, output: Any) -> None:
        if not self._keep:
            return
        self.outputs.append(output)
        if self.output_bytes <= SMALL_OUTPUT_BYTES:
            self._unused.append(_empty(self.output_bytes, dtype=torch.uint8, device=self._device))

    def _settle(self) -> None:
        """Leave the GPU idle before a call that may draw much power."""
        if self.idle_seconds:
            _synchronize()
            _idle(self.idle_seconds)

    def _idle_needed(self) -> float:
        ms = 0.0
        for _ in range(3):  # a host that is late once makes a short call seem long
            start, end = _Event(enable_timing=True), _Event(enable_timing=True)
            inputs = self._fresh()
            _synchronize()
            _sleep(self._opening_cycles)  # else a short call seems as long as the host takes to issue it
            start.record()
            self._function(*inputs)
            end.record()
            _synchronize()
            ms = _elapsed_ms(start, end)
            if ms < MIN_IDLE_CALL_MS:
                return 0.0
        return min(IDLE_CALLS * ms, MAX_IDLE_MS) / 1e3

    def _split(self, activities: Sequence[Any], count: int) -> Batch:
        own = {name: launches * (count + 1) for name, launches in self._own.items()}
        batch = split_batch(activities, count, own)
        self.escaped.update(batch.escaped)
        # The duration of the closing marker, which does not spin, is a marker's overhead.
        self._clock_mhz += [
            (self._opening_cycles - _CLOSING_CYCLES) / (opening - closing) * 1000
            for opening, closing in batch.marker_ns
            if opening > closing
        ]
        return batch

    def _submit_ms(self) -> float:
        times = []
        for _ in range(5):
            inputs = self._fresh()
            _synchronize()
            start = perf_counter_ns()
            output = self._function(*inputs)
            times.append((perf_counter_ns() - start) / 1e6)
            self.output_bytes = sum(map(size_in_bytes, tensors_of(output)))
            del output
        _synchronize()
        return median(times)


@cache
def _flush_kernels(device: str) -> Mapping[str, int]:
    """Return the kernels of one flush with their number of launches, by profiling flushes alone."""
    flush, times = ReadFlush(device), 4
    flush()  # loads its kernels

    def flushes() -> None:
        for _ in range(times):
            flush()

    seen: Counter[str] = Counter()
    for _ in range(3):  # a session may lose activities
        seen |= Counter(activity.name for activity in record_activities(flushes))
    return {name: -(-count // times) for name, count in seen.items()}


@cache
def cycles_per_ms() -> float:
    """Return the highest of a few clock rates, since an idle GPU starts with a low clock; measured once in a process."""
    rates = []
    for _ in range(5):
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        start.record()
        _sleep(_CALIBRATION_CYCLES)
        end.record()
        _synchronize()
        rates.append(_CALIBRATION_CYCLES / max(_elapsed_ms(start, end), 1e-3))
    return max(rates)
