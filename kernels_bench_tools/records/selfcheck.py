"""Results of the self-check: how accurate measurements are on a device, tested with kernels of known duration."""

from __future__ import annotations

import msgspec

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Environment

SCHEMA = 1


class Check(msgspec.Struct, kw_only=True):
    """One check and its result."""

    name: str
    """In snake_case, such as ``"floors"``."""
    title: str
    expected: str
    """The condition in words, with its bound."""
    found: str
    """The measured value, with its unit."""
    passed: bool
    detail: str = ""


class KernelAgreement(msgspec.Struct, kw_only=True):
    """One call, timed by this package and by Nsight Compute. Microseconds."""

    name: str
    ours_us: float
    ci_low_us: float
    ci_high_us: float
    kernels: int
    ncu_us: float | None = None
    """Sum of the kernels' durations under ``ncu``; None if it is not available."""
    ncu_overhead_us: float = 0.0
    """What ncu adds to this call: for each kernel, ncu's time of an empty kernel minus ours."""
    process_medians_us: list[float] = msgspec.field(default_factory=list)
    """The median in each of several fresh processes."""
    variation: float | None = None

    @property
    def truth_us(self) -> float | None:
        """The time by ``ncu`` without its overhead; None if it is not available."""
        return None if self.ncu_us is None else self.ncu_us - self.ncu_overhead_us

    @property
    def difference(self) -> float | None:
        """Our time over that by ``ncu`` without its overhead, minus 1."""
        return self.ours_us / self.truth_us - 1 if self.truth_us else None


class SelfCheck(msgspec.Struct, kw_only=True):
    """All checks on one device."""

    schema: int = SCHEMA
    ts: str
    device: Device
    env: Environment
    commit: str = ""
    checks: list[Check] = msgspec.field(default_factory=list)
    kernels: list[KernelAgreement] = msgspec.field(default_factory=list)
    floors_us: dict[str, float] = msgspec.field(default_factory=dict)
    """Overheads: an empty event pair, an empty kernel, a call from Python."""
