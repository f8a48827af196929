"""Self-checks: how good the numbers of a device are, found by measuring what is known."""

from __future__ import annotations

import msgspec

from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Environment

SCHEMA = 1


class Check(msgspec.Struct, kw_only=True):
    """One thing that was checked."""

    name: str
    """In snake_case, such as ``"linearity"``."""
    title: str
    expected: str
    """What must hold, in words and with its bound."""
    found: str
    """What was found, with its unit."""
    passed: bool
    detail: str = ""


class KernelAgreement(msgspec.Struct, kw_only=True):
    """One call, timed by us, by Nsight Compute and by the methods that other tools use. Microseconds."""

    name: str
    ours_us: float
    ci_low_us: float
    ci_high_us: float
    kernels: int
    """Kernels that one call launches."""
    ncu_us: float | None = None
    """Sum of the kernels' durations under ``ncu``; None where it could not be asked."""
    ncu_overhead_us: float = 0.0
    """What ncu adds to this call: for each of its kernels, ncu's time of an empty kernel less ours."""
    hot_us: float | None = None
    methods: dict[str, float] = msgspec.field(default_factory=dict)
    """Method to the microseconds that it reports: ``"timer"``, ``"do_bench"``, ``"do_bench_cudagraph"``."""
    process_medians_us: list[float] = msgspec.field(default_factory=list)
    """The median in each of several fresh processes."""
    variation: float | None = None
    """Coefficient of variation of ``process_medians_us``."""

    @property
    def truth_us(self) -> float | None:
        """What ``ncu`` says without its own cost; None where it was not asked."""
        return None if self.ncu_us is None else self.ncu_us - self.ncu_overhead_us


class SelfCheck(msgspec.Struct, kw_only=True):
    """Everything that was checked on one device."""

    schema: int = SCHEMA
    ts: str
    device: Device
    env: Environment
    commit: str = ""
    checks: list[Check] = msgspec.field(default_factory=list)
    kernels: list[KernelAgreement] = msgspec.field(default_factory=list)
    floors_us: dict[str, float] = msgspec.field(default_factory=dict)
    """What nothing costs: an empty event pair, a kernel that does nothing, a call from Python."""
    ceilings: dict[str, float] = msgspec.field(default_factory=dict)
