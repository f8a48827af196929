"""Results of the self-check: how accurate measurements are on a device, tested with kernels of known duration."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Environment

SCHEMA = 1
FOLDER = "selfcheck"
"""Folder of self-checks in a project, one file per device; the report shows them."""


class Check(msgspec.Struct, kw_only=True):
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
    def ours(self) -> Estimate:
        """Our median with its interval."""
        return Estimate(self.ours_us, self.ci_low_us, self.ci_high_us)

    @property
    def truth_us(self) -> float | None:
        """The time by ``ncu`` without its overhead; None if it is not available."""
        return None if self.ncu_us is None else self.ncu_us - self.ncu_overhead_us

    @property
    def difference(self) -> float | None:
        """Our time over that by ``ncu`` without its overhead, minus 1."""
        return self.ours_us / self.truth_us - 1 if self.truth_us else None


class SelfCheck(msgspec.Struct, kw_only=True):
    schema: int = SCHEMA
    ts: str
    device: Device
    env: Environment
    commit: str = ""
    checks: list[Check] = msgspec.field(default_factory=list)
    kernels: list[KernelAgreement] = msgspec.field(default_factory=list)
    floors_us: dict[str, float] = msgspec.field(default_factory=dict)
    """Overheads: an empty event pair, an empty kernel, a call from Python."""

    @property
    def worst(self) -> float | None:
        """The largest relative difference from ncu, unsigned."""
        differences = [kernel.difference for kernel in self.kernels]
        return max((abs(difference) for difference in differences if difference is not None), default=None)


class SelfChecks(NamedTuple):
    """The self-checks of a project, GPUs first, then by the slug of the device."""

    checks: list[SelfCheck]
    problems: list[ProjectError]
    """Errors of files that cannot be read, or are no self-checks."""


def find_selfchecks(root: Path) -> list[Path]:
    return sorted((root / FOLDER).glob("*.json"))


def read_selfchecks(root: Path) -> SelfChecks:
    checks, problems = list[SelfCheck](), list[ProjectError]()
    for file in find_selfchecks(root):
        try:
            checks.append(read_struct(file, SelfCheck))
            continue
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
        except msgspec.DecodeError as error:
            what = f"is not a self-check: {error}"
        problems.append(ProjectError(f"{FOLDER}/{file.name}", what, "A file that `kbt selfcheck` wrote"))
    checks.sort(key=lambda check: (check.device.kind == "cpu", check.device.slug))
    return SelfChecks(checks, problems)
