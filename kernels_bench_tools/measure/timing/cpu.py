"""Timed calls on the CPU, by the host's monotonic clock, rotating through input sets; how long threads wait for a core."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

from kernels_bench_tools.measure.operator import Inputs, size_in_bytes, tensors_of
from kernels_bench_tools.measure.timing.caches import CPU_CACHES, fits_beside, last_level_cache_bytes
from kernels_bench_tools.measure.timing.cuda import choose_calls
from kernels_bench_tools.measure.timing.sampling import Call
from kernels_bench_tools.schema.record import CacheState

MAX_WAITING = 0.05
"""Share of the sampling time that a thread may wait for a core: by about as much the median of a long call can be too
long. Of calls that use both of two cores, a thread waits for 1.4 % of the time undisturbed, for 40 % or more beside one
busy process. Their medians are then up to 700 times too long: one thread spins at a barrier while the other waits."""
MIN_WAITING_SECONDS = 0.01
"""One wait of a time slice disturbs one sample."""


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


@dataclass(frozen=True)
class Waiting:
    """What kept the threads of this process from running."""

    share: float
    """Of the time, waited for a core by the thread that waited longest; also threads that end a call together count."""
    disturbed: bool
    switches: int
    """Involuntary context switches of all threads."""

    def __str__(self) -> str:
        """Describe it, without a full stop."""
        return (
            f"a thread waited {self.share:.0%} of the time for a core, {self.switches} involuntary switches"
        )


class CoreWaits:
    """Counts how long threads wait for a core, from its creation on."""

    def __init__(self) -> None:
        self._start, self._switches, self._waited = perf_counter(), _switches(), _waited()

    def read(self, samples: int) -> Waiting:
        """Return what was counted so far, during so many timed calls."""
        seconds = perf_counter() - self._start
        changes = [
            (now - before, slices - slices_before)
            for name, (now, slices) in _waited().items()
            for before, slices_before in [self._waited.get(name, (0.0, 0))]
        ]
        longest = max((waited for waited, _ in changes), default=0.0)
        # A wait ends with a time slice: with fewer slices than that, hardly any sample of many short calls has waited.
        hit = sum(slices for _, slices in changes) > MAX_WAITING * samples
        disturbed = hit and longest > max(MAX_WAITING * seconds, MIN_WAITING_SECONDS)
        return Waiting(min(longest / seconds, 1.0), disturbed, _switches() - self._switches)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _waited() -> dict[str, tuple[float, int]]:
    """Return the seconds that each thread has waited for a core, and the number of its time slices.

    Where the kernel does not count them, the seconds in which any process waited, each as a slice of a millisecond.
    """
    found = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            _, waited, slices = map(int, path.read_text(encoding="ascii").split())
            found[path.parent.name] = waited / 1e9, slices
        except (OSError, ValueError):  # the thread has ended, or the kernel does not count
            continue
    if found:
        return found
    try:
        some = Path("/proc/pressure/cpu").read_text(encoding="ascii").partition("\n")[0]
        microseconds = int(some.rpartition("=")[2])
        return {"pressure": (microseconds / 1e6, microseconds // 1000)}
    except (OSError, ValueError):
        return {}
