"""Suites: workloads of several operators that are reported together, defined in TOML files. Times are milliseconds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kernels_bench_tools.errors import SuiteError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Verdict


class SuiteKernel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One row of a suite."""

    name: str
    operator: str
    """Folder of the operator."""
    workload: str
    """Name of the workload in the suite's workload set."""


class Suite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The definition of a suite."""

    title: str
    workloads: str
    ours: str
    """Family of the implementations that are compared with the baselines."""
    kernel: list[SuiteKernel]
    small_workloads: str = ""
    """Smaller workload set for CPUs; empty to use ``workloads`` there."""
    small: list[SuiteKernel] = []

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if there is no row, or a smaller set without rows or the reverse."""
        if not self.kernel:
            raise ValueError("it has no [[kernel]]")
        if bool(self.small) != bool(self.small_workloads):
            raise ValueError("small_workloads and [[small]] go together")

    def rows_by_set(self, kind: str) -> list[tuple[str, list[SuiteKernel]]]:
        """Return the workload sets to report for a device kind with their rows, the preferred one first."""
        rows = [(self.workloads, self.kernel)]
        if kind == "cpu" and self.small:
            return [(self.small_workloads, self.small), *rows]
        return rows

    @property
    def operators(self) -> list[str]:
        """The operators, in order of first appearance."""
        return list(dict.fromkeys(kernel.operator for kernel in [*self.kernel, *self.small]))


class SuiteEntry(msgspec.Struct, kw_only=True):
    """One implementation on the workload of a row."""

    implementation: str
    title: str
    status: Status | None = None
    reason: str = ""
    p50_ms: float | None = None
    """None unless the status is ``ok``."""
    rate: float | None = None
    """Number of the row's metric."""


class SuiteRow(msgspec.Struct, kw_only=True):
    """One kernel on one device."""

    kernel: str
    operator: str
    workload: str
    metric: str
    """``GB/s`` or ``TFLOP/s``, whichever limits the kernel."""
    ours: SuiteEntry | None = None
    """None if not measured."""
    base: SuiteEntry | None = None
    best: SuiteEntry | None = None
    """The fastest correct one of the others; it may be the baseline."""
    speedup: float | None = None
    """Baseline time divided by ours, with its interval and verdict as on the operator's page."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict = Verdict.NONE
    processes: int = 0
    """In how many processes ours was measured, or the baseline if those are fewer; 0 without a speed-up."""
    fraction: float | None = None
    """Our rate divided by the measured peak that ``ceiling`` names."""
    ceiling: str = ""
    reason: str = ""


class SuiteDevice(msgspec.Struct, kw_only=True):
    """A suite on one device."""

    name: str
    slug: str
    rows: list[SuiteRow]


class SuiteReport(msgspec.Struct, kw_only=True):
    """A suite on every device with records of it."""

    name: str
    title: str
    devices: list[SuiteDevice]


def read_suite(path: Path) -> Suite:
    """Return the suite that a file defines; raise ``SuiteError`` if it is not valid."""
    try:
        return msgspec.toml.decode(read_file(path), type=Suite)
    except OSError as error:
        raise SuiteError(
            path.name, f"cannot be read ({error.strerror})", "The definition of a suite"
        ) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SuiteError(path.name, str(error), "The keys that docs/suites.md names") from error
