"""State of the CPU's caches before a timed call, and how long threads wait for a core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import listdir
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

from kernels_bench_tools.measure.operator import Inputs, size_in_bytes, tensors_of
from kernels_bench_tools.measure.timing.caches import CPU_CACHES, last_level_cache_bytes
from kernels_bench_tools.records.record import CacheState

MAX_WAITING = 0.05
"""Share of the sampling time that a thread may wait for a core: by about as much the median of a long call can be too
long. Of calls that use both of two cores, a thread waits for 1.4 % of the time undisturbed, for 40 % or more beside one
busy process. Their medians are then up to 700 times too long: one thread spins at a barrier while the other waits."""
_TASKS = "/proc/self/task"
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
    """What kept the threads of this process from running."""

    share: float
    """Of the time, waited for a core by the thread that waited longest; also threads that end a call together count."""
    disturbed: bool
    switches: int
    """Involuntary context switches of all threads."""

    def __str__(self) -> str:
        return (
            f"a thread waited {self.share:.0%} of the time for a core, {self.switches} involuntary switches"
        )


class CoreWaits:
    """Counts how long threads wait for a core, during ``with`` blocks."""

    def __init__(self) -> None:
        self._seconds, self._switches = 0.0, 0
        self._waited: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> None:
        self._start, self._switches_before, self._before = perf_counter(), _switches(), _waited()

    def __exit__(self, *_: object) -> None:
        self._seconds += perf_counter() - self._start
        self._switches += _switches() - self._switches_before
        for name, (waited, slices) in _waited().items():
            waited_before, slices_before = self._before.get(name, (0.0, 0))
            known, known_slices = self._waited.get(name, (0.0, 0))
            self._waited[name] = known + waited - waited_before, known_slices + slices - slices_before

    def read(self, samples: int) -> Waiting:
        """Return what was counted so far, during this many timed calls."""
        longest = max((waited for waited, _ in self._waited.values()), default=0.0)
        # A wait ends with a time slice: with fewer slices than that, hardly any sample of many short calls has waited.
        hit = sum(slices for _, slices in self._waited.values()) > MAX_WAITING * samples
        disturbed = hit and longest > max(MAX_WAITING * self._seconds, MIN_WAITING_SECONDS)
        return Waiting(min(longest / max(self._seconds, 1e-9), 1.0), disturbed, self._switches)


def _switches() -> int:
    return getrusage(RUSAGE_SELF).ru_nivcsw


def _waited() -> dict[str, tuple[float, int]]:
    """Return the seconds that each thread has waited for a core, and the number of its time slices.

    Where the kernel does not count them, the seconds in which any process waited, each as a slice of a millisecond.
    """
    found = {}
    for task in listdir(_TASKS):  # noqa: PTH208 - as below
        try:
            _, waited, slices = map(int, _read(f"{_TASKS}/{task}/schedstat").split())
            found[task] = waited / 1e9, slices
        except (OSError, ValueError):  # the thread has ended, or the kernel does not count
            continue
    if not found and (pressure := cpu_pressure()) is not None:
        return {"pressure": (pressure, int(pressure * 1e3))}
    return found


def cpu_pressure() -> float | None:
    """Return the seconds since boot in which any process of the machine waited for a core; None if it is not counted."""
    try:
        some = _read("/proc/pressure/cpu").partition(b"\n")[0]
        return int(some.rpartition(b"=")[2]) / 1e6
    except (OSError, ValueError):
        return None


def _read(path: str) -> bytes:
    """Return the bytes of a file, by no function in Python: an implementation could replace one, to work between calls."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read()
