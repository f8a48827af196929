"""The options of a build."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.records.request import DRAWN_SET, USUAL_REQUEST, Request
from kernels_bench_tools.run.executor import Executor
from kernels_bench_tools.run.progress import Progress

DEFAULT_PROCESSES = {"cuda": 3, "cpu": 1}
"""Fresh processes for each cell that measures, by the kind of the device. Medians differ between processes by more
than their intervals (addresses, clocks), and three are the fewest that show it. CPU results usually only show that
something runs and roughly how fast, which is not worth three times the minutes."""
QUICK_WORKLOADS = "smoke"
"""The workload set that only shows whether something runs: one process is enough."""

ExecutorFactory = Callable[[Project, str, Progress], Executor]
"""Makes an executor for a project, the name of an environment and a progress."""


@dataclass(frozen=True)
class BuildOptions:
    environment: str = "uv"
    """``"uv"``, or ``"current"`` for the interpreter that runs ``kbt``."""
    rerun: bool | tuple[str, ...] = False
    """Run cells although their results are known: all targets, or these."""
    request: Request = USUAL_REQUEST
    """What is asked of cells that measure."""
    jobs: int = os.cpu_count() or 1
    """How many environments are made, and cells that do not measure are run, at once."""
    processes: int = 0
    """In how many fresh processes each cell that measures is run; 0 for ``DEFAULT_PROCESSES``, or for one
    with ``quick`` or ``QUICK_WORKLOADS``."""
    executor: ExecutorFactory | None = None
    """Makes what the cells run on; None for this machine."""
    quick: bool = False
    """One process is enough for cells that have no results of the default number of processes."""
    measure: bool = True
    """Run cells that measure; otherwise the report has committed records and what was measured before."""
    planned: Mapping[str, float] | None = None
    """Operators that are measured, in this order, with the seconds that each is expected to take; None for all."""
    seconds: float = inf
    """Time for sessions: an operator that is not expected to be finished in it is not measured."""
    retry_failed: bool = False
    """Run cells that failed again, although nothing about them has changed."""
    memory_limit: int = 0
    """Bytes that the processes of one cell may hold; 0 for the project's setting."""
    aside: bool = False
    """The results are not kept for the report."""
    pass_env: tuple[str, ...] = ()
    """Variables that are passed to cells although they may be credentials, in addition to the project's setting."""

    def process_counts(self, kind: str) -> list[int]:
        """Return the numbers of processes of which known results are used; a cell that measures is run in the last."""
        sets = self.request.workloads
        drawn = all(map(DRAWN_SET.fullmatch, sets.split(",")))  # they get no verdict, but many shapes
        if self.processes or sets == QUICK_WORKLOADS or drawn:
            return [self.processes or 1]
        default = DEFAULT_PROCESSES.get(kind, DEFAULT_PROCESSES["cuda"])
        return list(dict.fromkeys([max(DEFAULT_PROCESSES.values()), 1 if self.quick else default]))
