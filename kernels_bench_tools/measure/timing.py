"""Device time of one call with cold caches, on whatever device there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from math import ceil
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from kernels_bench_tools.measure.cuda import CudaTimer
from kernels_bench_tools.measure.cupti import MarkersMissingError, kernel_table
from kernels_bench_tools.measure.operator import Inputs, size_in_bytes
from kernels_bench_tools.measure.sampling import Call, Limits, sample, summarize, warm_up
from kernels_bench_tools.records import CacheState, Kernel, Latency, Timer

CUDA_LIMITS = Limits(warmup_seconds=1.0, min_warmup_seconds=0.1, sample_seconds=3.0, tick_ms=32e-6)
# The CPU set has to end within seconds, and its noise outlasts any patience.
CPU_LIMITS = Limits(warmup_seconds=0.2, sample_seconds=1.0)
MAX_ROTATED_BYTES = 512 * 2**20
MAX_INPUT_SETS = 256
_PROFILER_ATTEMPTS = 2


@dataclass(frozen=True)
class Measurement:
    """What timing a function found."""

    latency: Latency
    kernels: list[Kernel] = field(default_factory=list)
    span_ms: float | None = None
    events_ms: float | None = None
    """The same call's median by CUDA events, as a second opinion; None on other devices."""
    note: str = ""
    """Anything a reader of the figure should know."""


def measure(function: Callable[..., Any], input_sets: Sequence[Inputs], device: str) -> Measurement:
    """Time ``function`` on a CUDA device by its kernels, elsewhere by the host's clock.

    Args:
        function: The implementation; already compiled, so its first call costs what the second does.
        input_sets: Arguments; the CPU's calls go round them, CUDA's use the first and flush the cache.
        device: ``"cuda"`` or ``"cpu"``.

    Raises:
        NoKernelError: It launched nothing on the CUDA device.
    """
    if device.startswith("cuda"):
        return _measure_cuda(CudaTimer(function, input_sets[0], device))
    return _measure_cpu(function, input_sets)


def input_set_count(set_bytes: int, device: str) -> int:
    """Return how many input sets calls must go round for each to find the caches cold.

    Args:
        set_bytes: Bytes that one call reads and writes.
        device: On CUDA a flush does the same, so one set is enough.
    """
    if device.startswith("cuda"):
        return 1
    wanted = ceil(2 * last_level_cache_bytes() / max(set_bytes, 1))
    return max(1, min(wanted, MAX_INPUT_SETS, MAX_ROTATED_BYTES // max(set_bytes, 1)))


@cache
def last_level_cache_bytes() -> int:
    """Return the size of the CPU's largest cache; 32 MiB where the system does not tell."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG])", path.read_text(encoding="ascii").strip())
        if match:
            sizes.append(int(match[1]) * units[match[2]])
    return max(sizes, default=32 * 2**20)


def _measure_cuda(timer: CudaTimer) -> Measurement:
    warm = warm_up(timer.by_events, CUDA_LIMITS)
    source, note = Timer.CUPTI, ""
    try:
        # The first session initializes CUPTI, which must not cost sampling time.
        _retry(timer.by_kernels, 1)
        calls, reason = sample(lambda n: _retry(timer.by_kernels, n), CUDA_LIMITS, warm.seconds_per_call)
    except MarkersMissingError as error:
        source, note = Timer.EVENTS, f"timed by events: {error}"
        calls, reason = sample(timer.by_events, CUDA_LIMITS, warm.seconds_per_call)
    latency = summarize(
        calls, timer=source, cache=CacheState.READ_FLUSH, input_sets=1, warmup=warm.calls, stop_reason=reason
    )
    spans = [call.span_ms for call in calls if call.span_ms is not None]
    span_ms = median(spans) if spans else None
    return Measurement(latency, kernel_table(calls), span_ms, warm.median_ms, note)


def _retry(draw: Callable[[int], list[Call]], count: int) -> list[Call]:
    for _ in range(_PROFILER_ATTEMPTS - 1):
        try:
            return draw(count)
        except MarkersMissingError:
            continue  # a buffer was lost; the next session may have all
    return draw(count)


def _measure_cpu(function: Callable[..., Any], input_sets: Sequence[Inputs]) -> Measurement:
    turn = cycle(input_sets)

    def draw(count: int) -> list[Call]:
        calls = []
        for _ in range(count):
            inputs = next(turn)
            start = perf_counter_ns()
            function(*inputs)
            calls.append(Call((perf_counter_ns() - start) / 1e6))
        return calls

    warm = warm_up(draw, CPU_LIMITS)
    calls, reason = sample(draw, CPU_LIMITS, warm.seconds_per_call)
    total = sum(size_in_bytes(value) for inputs in input_sets for value in inputs)
    cache_state = CacheState.ROTATED if total >= last_level_cache_bytes() else CacheState.HOT
    latency = summarize(
        calls,
        timer=Timer.MONOTONIC,
        cache=cache_state,
        input_sets=len(input_sets),
        warmup=warm.calls,
        stop_reason=reason,
    )
    return Measurement(latency)
