"""Timed calls on the CPU, by the host's monotonic clock, rotating through input sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from time import perf_counter_ns
from typing import Any

from kernels_bench_tools.measure.operator import Inputs, size_in_bytes, tensors_of
from kernels_bench_tools.measure.timing.caches import CPU_CACHES, fits_beside, last_level_cache_bytes
from kernels_bench_tools.measure.timing.cuda import choose_calls
from kernels_bench_tools.measure.timing.sampling import Call
from kernels_bench_tools.schema.record import CacheState


class CpuTimer:
    """Times calls of one function, which rotate through the input sets."""

    def __init__(self, function: Callable[..., Any], input_sets: Sequence[Inputs]) -> None:
        self._function = function
        self._turn = cycle(input_sets)
        # The arguments of a backward pass are tuples of tensors.
        given = [value for inputs in input_sets for entry in inputs for value in tensors_of(entry)]
        total = sum(map(size_in_bytes, given))
        # Outputs pass through the cache too, so that half of the bytes may be inputs.
        cold = total >= CPU_CACHES / 2 * last_level_cache_bytes()
        self.cache = CacheState.ROTATED if cold else CacheState.HOT
        """State of the caches when a call begins."""

    def by_clock(self, count: int) -> list[Call]:
        """Time ``count`` calls."""
        calls = []
        for _ in range(count):
            inputs = next(self._turn)
            start = perf_counter_ns()
            output = self._function(*inputs)
            calls.append(Call((perf_counter_ns() - start) / 1e6))
            del output
        return calls

    def keep_outputs(self, count: int) -> list[tuple[Inputs, Any]]:
        """Make ``count`` further calls; return inputs and output of some random ones and of the last."""
        chosen, kept = choose_calls(count), []
        for number in range(count):
            inputs = next(self._turn)
            output = self._function(*inputs)
            if number in chosen and (number == count - 1 or fits_beside(output, "cpu")):
                kept.append((inputs, output))
            del output
        return kept
