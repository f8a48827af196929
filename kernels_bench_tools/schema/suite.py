"""Suites: kernels of several operators that people look at together, each one workload of one operator.

A suite is a TOML file beside the notebook that reports it. It may hold what somebody else has published of the same
kernels, with the bytes that were counted there and those that a call has to move. Times are milliseconds.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kernels_bench_tools.errors import SuiteError
from kernels_bench_tools.schema.record import Status


class PublishedRow(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What somebody has published of one kernel, and what it should have said."""

    ours_ms: float
    base_ms: float
    ours_gb_per_s: float
    """As printed."""
    base_gb_per_s: float
    counted_bytes: int
    """What the printed rate was computed from."""
    bytes: int
    """What the call has to move at the least."""
    base_copies_bytes: int = 0
    """Where the baseline was a copy: what that moves. It tells what the device can reach."""
    note: str = ""


class SuiteKernel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One row of a suite."""

    name: str
    operator: str
    """Folder of the operator."""
    workload: str
    """Name of the workload in the suite's set."""
    published: PublishedRow | None = None


class Published(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where the published figures come from."""

    device: str
    source: str


class Suite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A suite as its file defines it."""

    title: str
    workloads: str
    """The workload set that its workloads belong to."""
    ours: str
    """Family of the implementations that are held against the baselines."""
    published: Published | None = None
    kernel: list[SuiteKernel]
    small_workloads: str = ""
    """The set for a CPU, where ``workloads`` would take hours; empty if it does not."""
    small: list[SuiteKernel] = []
    """The rows of that set."""

    def __post_init__(self) -> None:
        """Check what types do not tell.

        Raises:
            ValueError: There is no row, or rows without their set.
        """
        if not self.kernel:
            raise ValueError("it has no [[kernel]]")
        if bool(self.small) != bool(self.small_workloads):
            raise ValueError("small_workloads and [[small]] go together")

    def rows_by_set(self, kind: str) -> list[tuple[str, list[SuiteKernel]]]:
        """Return the sets that a device of this kind has rows of, the one that it is meant for first."""
        rows = [(self.workloads, self.kernel)]
        if kind == "cpu" and self.small:
            return [(self.small_workloads, self.small), *rows]
        return rows

    @property
    def operators(self) -> list[str]:
        """The operators in the order in which the suite first names them."""
        return list(dict.fromkeys(kernel.operator for kernel in [*self.kernel, *self.small]))

    @property
    def published_copy(self) -> float | None:
        """What a copy reached on the published device, in GB/s: the median of its rows; None if no row is one."""
        rates = sorted(
            row.base_copies_bytes / row.base_ms / 1e6
            for row in (kernel.published for kernel in self.kernel)
            if row is not None and row.base_copies_bytes
        )
        middle = len(rates) // 2
        return (rates[middle] + rates[~middle]) / 2 if rates else None


class SuiteEntry(msgspec.Struct, kw_only=True):
    """One implementation on the workload of a row."""

    implementation: str
    title: str
    status: Status | None = None
    reason: str = ""
    p50_ms: float | None = None
    """Only of one that ended well: nothing else has a place in a comparison."""
    rate: float | None = None
    """In the row's metric."""


NOBODY = SuiteEntry(implementation="", title="")
"""Stands where no implementation does."""


class SuiteRow(msgspec.Struct, kw_only=True):
    """One kernel on one device."""

    kernel: str
    operator: str
    workload: str
    metric: str
    """``GB/s`` or ``TFLOP/s``; what bounds the kernel."""
    ours: SuiteEntry | None = None
    """None if nobody has tried."""
    base: SuiteEntry | None = None
    best: SuiteEntry | None = None
    """The fastest of all the others that are correct; it may be the baseline."""
    speedup: float | None = None
    """Base over ours."""
    fraction: float | None = None
    """What ours reaches of ``ceiling``."""
    ceiling: str = ""
    reason: str = ""
    """Why there is no comparison, in a line; empty if there is one."""


class SuiteDevice(msgspec.Struct, kw_only=True):
    """A suite on one device."""

    name: str
    slug: str
    rows: list[SuiteRow]


class SuiteReport(msgspec.Struct, kw_only=True):
    """A suite on every device that has a record of it."""

    name: str
    title: str
    devices: list[SuiteDevice]


def read_suite(path: Path) -> Suite:
    """Return the suite that a file defines.

    Raises:
        SuiteError: The file cannot be read, or does not say what a suite must.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Suite)
    except OSError as error:
        raise SuiteError(
            path.name, f"cannot be read ({error.strerror})", "The definition of a suite"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SuiteError(path.name, str(error), "The keys that docs/suites.md names") from error
