"""State of the CPU's caches before a timed call, and how long threads wait for a core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from kernels_bench_tools.measure.operator import Inputs, size_in_bytes, tensors_of
from kernels_bench_tools.measure.timing.caches import CPU_CACHES, last_level_cache_bytes
from kernels_bench_tools.records.record import CacheState

MAX_WAITING = 0.05
"""Share of the sampling time that a thread may wait for a core: by about as much the median of a long call can be too
long. Of calls that use both of two cores, a thread waits for 1.4 % of the time undisturbed, for 40 % or more beside one
busy process. Their medians are then up to 700 times too long: one thread spins at a barrier while the other waits."""
MIN_WAITING_SECONDS = 0.01
"""One wait of a time slice disturbs one sample."""


def cache_state(input_sets: Sequence[Inputs]) -> CacheState:
    """Return the state of the CPU's caches when a call begins that rotates through these sets."""
    # The arguments of a backward pass are tuples of tensors.
    given = [value for inputs in input_sets for entry in inputs for value in tensors_of(entry)]
    # Outputs pass through the cache too, so that half of the bytes may be inputs.
    cold = sum(map(size_in_bytes, given)) >= CPU_CACHES / 2 * last_level_cache_bytes()
    return CacheState.ROTATED if cold else CacheState.HOT


@dataclass(frozen=True)
class Waiting:
    """What kept the threads of a process from running."""

    share: float
    """Of the time, waited for a core by the thread that waited longest; also threads that end a call together count."""
    disturbed: bool

    def __str__(self) -> str:
        return f"a thread waited {self.share:.0%} of the time for a core"


class CoreWaits:
    """Counts how long the threads of a process wait for a core, from when it is made."""

    def __init__(self, pid: int) -> None:
        self._tasks = f"/proc/{pid}/task"
        self._start, self._before = perf_counter(), _waited(self._tasks)

    def read(self, samples: int) -> Waiting:
        """Return what was counted so far, during this many timed calls."""
        seconds, waited = perf_counter() - self._start, []
        for name, (until_now, slices) in _waited(self._tasks).items():
            before, slices_before = self._before.get(name, (0.0, 0))
            waited.append((until_now - before, slices - slices_before))
        longest = max((one for one, _ in waited), default=0.0)
        # A wait ends with a time slice: with fewer slices than that, hardly any sample of many short calls has waited.
        hit = sum(slices for _, slices in waited) > MAX_WAITING * samples
        disturbed = hit and longest > max(MAX_WAITING * seconds, MIN_WAITING_SECONDS)
        return Waiting(min(longest / max(seconds, 1e-9), 1.0), disturbed)


@contextmanager
def away_from(pid: int) -> Iterator[None]:
    """Keep this process from the cores of another one, if that leaves it some: one thread, on those."""
    with _on_cores(lambda own: own - os.sched_getaffinity(pid)):
        yield


@contextmanager
def on_cores_of(pid: int) -> Iterator[None]:
    """Keep this process on the cores of another one: one thread."""
    with _on_cores(lambda _: os.sched_getaffinity(pid)):
        yield


@contextmanager
def _on_cores(choose: Callable[[set[int]], set[int]]) -> Iterator[None]:
    cores: set[int] = set()
    with suppress(AttributeError, OSError):  # not Linux, or it has ended
        own = os.sched_getaffinity(0)
        cores = choose(own)
    if not cores:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
        torch.set_num_threads(threads)


def _waited(tasks: str) -> dict[str, tuple[float, int]]:
    """Return the seconds that each thread has waited for a core, and the number of its time slices.

    Where the kernel does not count them, the seconds in which any process waited, each as a slice of a millisecond.
    """
    found = {}
    with suppress(OSError):  # the process has ended
        for task in os.listdir(tasks):  # noqa: PTH208 - names only
            with suppress(OSError, ValueError):  # the thread has ended, or the kernel does not count
                _, waited, slices = map(int, Path(tasks, task, "schedstat").read_bytes().split())
                found[task] = waited / 1e9, slices
    if not found and (pressure := cpu_pressure()) is not None:
        return {"pressure": (pressure, int(pressure * 1e3))}
    return found


def cpu_pressure() -> float | None:
    """Return the seconds since boot in which any process of the machine waited for a core; None if it is not counted."""
    try:
        some = Path("/proc/pressure/cpu").read_bytes().partition(b"\n")[0]
        return int(some.rpartition(b"=")[2]) / 1e6
    except (OSError, ValueError):
        return None
