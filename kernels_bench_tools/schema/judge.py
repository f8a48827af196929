"""Messages between the runner and the process that judges cells; one line of JSON each."""

from __future__ import annotations

import msgspec

from kernels_bench_tools.schema.build import CellContext
from kernels_bench_tools.schema.record import Failure, Status


class Job(msgspec.Struct, kw_only=True):
    """One process of a cell is going to be measured."""

    context: CellContext
    device: str
    """Torch's name of the device."""
    folder: str
    """Where the records are written."""


class Ended(msgspec.Struct, kw_only=True):
    """The process of the cell has ended."""

    status: Status = Status.OK
    failure: Failure | None = None
    crashed: bool = False
    """Whether a signal ended it, so that another process may go on with the next workload."""


class Verdict(msgspec.Struct, kw_only=True):
    """The answer: what was written."""

    more: bool = False
    """Whether workloads are left after a crash, and the cell is to be started again."""
    files: list[str] = msgspec.field(default_factory=list)
