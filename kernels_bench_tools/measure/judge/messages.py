"""What the runner and the process that judges tell each other, a line of JSON each."""

from __future__ import annotations

import msgspec

from kernels_bench_tools.records.record import Failure, Status
from kernels_bench_tools.records.request import CellContext


class Job(msgspec.Struct, kw_only=True):
    """A line from the runner to the process that judges: one process of a cell is going to be measured."""

    context: CellContext
    device: str
    """Torch's name of the device."""
    token: str
    """What the harness in the cell's process gets before the cell's code runs. Who does not know it is another program."""


class Ended(msgspec.Struct, kw_only=True):
    """A line from the runner: the process of the cell has ended."""

    status: Status = Status.OK
    failure: Failure | None = None
    crashed: bool = False
    """Whether a signal ended it, so that another process may go on with the next workload."""


class Written(msgspec.Struct, kw_only=True):
    """The answer of the process that judges: the records."""

    more: bool = False
    """Whether workloads are left after a crash, and the cell is to be started again."""
    files: dict[str, str] = msgspec.field(default_factory=dict)
    """Name of a file of records to its lines. They are not on the disk, where the cell could change them."""
