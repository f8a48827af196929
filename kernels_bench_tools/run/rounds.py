"""Measuring sessions: several cells, each in several fresh processes, taking turns on one device.

What differs from process to process (addresses, clocks, what ran before) is then in the records, and what
changes while the session lasts falls on all cells alike: in turns A B C, C B A, A B C a drift cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.run.cache.store import Draft, StoredResult
from kernels_bench_tools.run.failed_records import measured_nothing
from kernels_bench_tools.run.merge import ProcessRun, join_runs
from kernels_bench_tools.run.process.run import CancelledCellError
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.sentinels import Deviation, find_deviations, flag_records, read_times
from kernels_bench_tools.schema.record import Status

Measure = Callable[[CellName, int], ProcessRun]
"""Runs one process, counted from 0, of a cell to its end."""


def take_turns(cells: Sequence[CellName], processes: int) -> Iterator[tuple[CellName, int]]:
    """Yield which process of which cell is next: every other round goes backwards.

    >>> a, b = CellName("a.md", "x"), CellName("b.md", "x")
    >>> [f"{cell.notebook[0]}{process}" for cell, process in take_turns([a, b], 3)]
    ['a0', 'b0', 'b1', 'a1', 'a2', 'b2']
    """
    for process in range(processes):
        for cell in cells if process % 2 == 0 else reversed(cells):
            yield cell, process


class Session:
    """Cells that measure on one device one after the other, with nothing beside them."""

    def __init__(
        self, cells: Sequence[CellName], processes: int, limit: float, measure: Measure, progress: Progress
    ) -> None:
        self.cells = list(cells)
        self.processes = processes
        self.limit = limit
        """The share by which a sentinel may differ."""
        self._measure = measure
        self._progress = progress
        self._runs: dict[CellName, dict[int, ProcessRun]] = {cell: {} for cell in cells}
        self._seconds = dict.fromkeys(cells, 0.0)
        self.cancelled: set[CellName] = set()
        """The cells whose results nobody wants any more: they have none."""

    def run(self) -> None:
        """Measure all cells; what sentinels call into doubt is measured once more, then flagged."""
        for cell, process in take_turns(self.cells, self.processes):
            if not self._is_over(cell):
                self._run_one(cell, process)
        repeated: set[tuple[CellName, int]] = set()
        while doubtful := {key: why for key, why in self._deviations().items() if key not in repeated}:
            for (cell, process), why in doubtful.items():
                repeated.add((cell, process))
                if not self._is_over(cell):
                    self._progress.note(f"{self._told(cell, process)} is measured again: {why}")
                    self._run_one(cell, process)

    def complete(self) -> list[CellName]:
        """Return the cells that have a result: every process has ended, or one need not be followed."""
        wanted = [cell for cell in self.cells if cell not in self.cancelled]
        return [cell for cell in wanted if len(self._runs[cell]) == self.processes or self._is_over(cell)]

    def unfinished(self) -> dict[CellName, list[Draft]]:
        """Return what the processes left that have ended, of the cells that have no result yet."""
        ended = {*self.cancelled, *self.complete()}
        return {
            cell: [run.draft for _, run in sorted(runs.items())]
            for cell, runs in self._runs.items()
            if runs and cell not in ended
        }

    def flag(self) -> None:
        """Flag the records of processes whose sentinels deviate, as far as the session has come."""
        for (cell, process), why in self._deviations().items():
            self._progress.note(f"{self._told(cell, process)} is flagged: {why}")
            flag_records(self._runs[cell][process].draft.artifacts)

    def join(self, cell: CellName, draft: Draft) -> StoredResult:
        """Put what a complete cell's processes left into its draft; return how it ended."""
        runs = [run for _, run in sorted(self._runs[cell].items())]
        return join_runs(draft, runs, self.processes, self._seconds[cell])

    def _run_one(self, cell: CellName, process: int) -> None:
        name = str(cell)
        self._progress.process_started(name, process, self.processes)
        try:
            run = self._measure(cell, process)
        except CancelledCellError:
            self.cancelled.add(cell)
        else:
            self._runs[cell][process] = run
            self._seconds[cell] += run.result.seconds
        self._progress.process_ended(name)

    def _is_over(self, cell: CellName) -> bool:
        """Return whether more processes of a cell would be in vain.

        One failed, or has nothing to run here, or nobody wants its result.
        """
        return cell in self.cancelled or any(
            run.result.status is not Status.OK or measured_nothing(run.draft.artifacts)
            for run in self._runs[cell].values()
        )

    def _deviations(self) -> dict[tuple[CellName, int], Deviation]:
        keys = [(cell, process) for cell in self.cells for process in sorted(self._runs[cell])]
        times = [read_times(self._runs[cell][process].draft.artifacts) for cell, process in keys]
        found = zip(keys, find_deviations(times, self.limit), strict=True)
        return {key: deviation for key, deviation in found if deviation is not None}

    def _told(self, cell: CellName, process: int) -> str:
        return f"{cell}: process {process + 1} of {self.processes}"
