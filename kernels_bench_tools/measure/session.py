"""What a process measures once, whatever it measures: the device's ceilings, sentinels, clocks and a guard."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kernels_bench_tools.measure.correctness.check import SmallerCases
from kernels_bench_tools.measure.device.ceilings import measure_ceilings
from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.device.environment import card_uuid
from kernels_bench_tools.measure.device.roofline import CPU_MARGIN, TRAFFIC_MARGIN, Judgement, judge
from kernels_bench_tools.measure.device.sentinels import measure_sentinels
from kernels_bench_tools.measure.integrity.guard import Guard
from kernels_bench_tools.measure.timing.caches import cache_bytes
from kernels_bench_tools.schema.record import Work

SECOND_LOOKS = 2
"""How often the ceilings are measured again before a time is said to exceed them."""


@dataclass(kw_only=True)
class Session:
    """A process that measures, from before the implementation is loaded to after its last workload."""

    device: str
    clocks: ClockSampler
    guard: Guard
    ceilings: dict[str, float] = field(default_factory=dict)
    """GB/s, or TFLOP/s for a matmul; empty where they were not asked for."""
    smaller: SmallerCases = field(default_factory=SmallerCases)
    sentinels: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds before the first workload and, once :meth:`close` ran, after the last; CUDA only."""

    @property
    def null_ms(self) -> float:
        """Time of a kernel that does nothing; 0 where it was not measured."""
        return self.sentinels["null"][0] if "null" in self.sentinels else 0.0

    def judge(self, work: Work, ms: float, dtype: str) -> Judgement:
        """Say how near a time is to what this device can do, and whether it can be true.

        Before a time is called impossible the ceilings are measured again, and the higher ones count: a
        neighbour may have slowed the first ones down.
        """
        found = self._judge(work, ms, dtype)
        for _ in range(SECOND_LOOKS if self.ceilings else 0):
            if not found.exceeds:
                break
            for name, value in measure_ceilings(self.device).items():
                self.ceilings[name] = max(value, self.ceilings.get(name, 0.0))
            found = self._judge(work, ms, dtype)
        return found

    def _judge(self, work: Work, ms: float, dtype: str) -> Judgement:
        return judge(
            work,
            ms,
            dtype,
            self.ceilings,
            null_ms=self.null_ms,
            cache_bytes=cache_bytes(self.device),
            margin=TRAFFIC_MARGIN if self.device.startswith("cuda") else CPU_MARGIN,
        )

    def close(self) -> None:
        """Measure the sentinels once more."""
        # A device that an implementation has broken gives no more numbers; its records say what happened.
        with suppress(RuntimeError):
            for name, ms in _sentinels(self.device).items():
                self.sentinels.setdefault(name, []).append(ms)


@contextmanager
def open_session(device: str, *, ceilings: bool) -> Iterator[Session]:
    """Yield a session in which an implementation may be loaded: nothing of it has run yet.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
        ceilings: Whether to measure what the device can do, which takes about a second.
    """
    # Before the guard looks: the sampler is a process, and the profiler starts threads.
    with ClockSampler(card_uuid(device)) as clocks:
        sentinels = {name: [ms] for name, ms in _sentinels(device).items()}
        found = measure_ceilings(device) if ceilings else {}
        # torch alone is a million objects: without them, collecting after each workload takes 2 ms instead of 150.
        gc.freeze()
        yield Session(device=device, clocks=clocks, guard=Guard(device), ceilings=found, sentinels=sentinels)


def _sentinels(device: str) -> dict[str, float]:
    # On a CPU they would say what its neighbours do, not what the device does.
    return measure_sentinels(device) if device.startswith("cuda") else {}
