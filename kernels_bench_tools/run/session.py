"""Measuring sessions: the cells of one operator, each in several fresh processes, taking turns on one device.

What differs from process to process (addresses, clocks, what ran before) is then in the records, and a change
during the session affects all cells alike: the order A B C, C B A, A B C cancels a drift.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file, write_atomically
from kernels_bench_tools.measure.judge.runner import Turn
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.own_folders import make_folder
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.run.cache.key import CacheKey
from kernels_bench_tools.run.cache.store import CellCache, Draft, Entry, StoredResult, process_key
from kernels_bench_tools.run.cell import CellTask
from kernels_bench_tools.run.cell_outputs import flag_records, merge_processes, read_outcome, read_times
from kernels_bench_tools.run.process.run import wait_for
from kernels_bench_tools.run.progress import Progress

Times = Mapping[str, Sequence[float]]
"""Sentinel to its milliseconds in one process, in the order they were taken."""
_Process = tuple[CellName, int]
"""A cell, and the number of one of its processes."""

LIMITS = {"cuda": 0.015, "cpu": 0.25}
"""Kind of device to the share by which a sentinel may differ. Our harness has no sentinels on a CPU: with another
program on the same cores, the same matrix product takes 1.3 ms or 16 ms."""

SMALLEST_MS = 1e-3
"""Smaller differences, of one microsecond, are due to the timer; this exempts the null kernel."""

FEWEST_PROCESSES = 3
"""Processes that a session needs before its median is the expected value."""


@dataclass(frozen=True)
class Deviation:
    name: str
    ms: float
    expected_ms: float

    def __str__(self) -> str:
        change = self.ms / self.expected_ms - 1
        return f"sentinel {self.name!r} took {self.ms:.4g} ms, {change:+.1%} from {self.expected_ms:.4g} ms"


def find_deviations(session: Sequence[Times], limit: float) -> list[Deviation | None]:
    """Return, for each process of a session, the sentinel that deviates the most; None if none does.

    The expected value is the median of the session. With fewer than ``FEWEST_PROCESSES``, a process's last value
    is compared with its first instead. ``limit`` is the share by which a value may differ.
    """
    worst: list[Deviation | None] = []
    for times in session:
        deviations = []
        for name, values in times.items():
            of_all = [process[name] for process in session if process.get(name)]
            if not values:
                continue
            expected = median(chain(*of_all)) if len(of_all) >= FEWEST_PROCESSES else values[0]
            value = max(values, key=lambda value: abs(value - expected))
            if abs(value - expected) > max(limit * expected, SMALLEST_MS):
                deviations.append(Deviation(name, value, expected))
        worst.append(max(deviations, key=lambda it: abs(it.ms / it.expected_ms - 1), default=None))
    return worst


def process_order(cells: Sequence[CellName], processes: int) -> Iterator[tuple[CellName, int]]:
    """Yield the processes of a session in their order: every other round goes backwards.

    >>> a, b = CellName("a.md", "x"), CellName("b.md", "x")
    >>> [f"{cell.notebook[0]}{process}" for cell, process in process_order([a, b], 3)]
    ['a0', 'b0', 'b1', 'a1', 'a2', 'b2']
    """
    for process in range(processes):
        for cell in cells if process % 2 == 0 else reversed(cells):
            yield cell, process


class _Started(NamedTuple):
    """A process that has started, and waits for its turn."""

    process: _Process
    draft: Draft
    turn: Turn
    future: Future[StoredResult]


class _Ended(NamedTuple):
    entry: Entry
    records: dict[Path, bytes]
    """Its files of records: another cell of the session could change them on the disk."""
    times: Times


@dataclass
class Session:
    """Cells that measure on one device, one process at a time."""

    group: str
    """What its cells share: their operator, or else their notebook."""
    nodes: Sequence[Node]
    processes: int
    """In how many fresh processes each cell is run."""
    device_kind: str
    keys: Mapping[CellName, CacheKey]
    rerun: Set[CellName]
    """Cells for which no process of an interrupted build is reused."""
    cache: CellCache
    progress: Progress
    make_task: Callable[[Node, Draft, int], CellTask]
    """Returns one process of a cell, given its draft and its number."""
    make_draft: Callable[[CellName], Draft]
    """Returns the draft for the merged result of a cell."""
    began: float = field(default_factory=time.monotonic)
    results: dict[CellName, StoredResult] = field(default_factory=dict)
    """The merged results, once :meth:`finish` was called, or as another executor has set them."""
    _ended: dict[CellName, dict[int, _Ended]] = field(default_factory=lambda: defaultdict(dict))
    """By cell and number, the processes that have ended, as they were last measured."""
    _seconds: dict[CellName, float] = field(default_factory=lambda: defaultdict(float))
    _over: set[CellName] = field(default_factory=set)
    """Cells that need no more processes: one failed, or found that nothing is supported."""

    @property
    def _limit(self) -> float:
        return LIMITS.get(self.device_kind, LIMITS["cuda"])

    @property
    def names(self) -> list[CellName]:
        return [node.name for node in self.nodes]

    def run(self, execute: Callable[[CellTask], StoredResult]) -> None:
        """Measure all cells; a process with deviating sentinels is run once more.

        On a GPU the next process starts to import while one measures.
        """
        order = list(process_order(self.names, self.processes))
        nodes = {node.name: node for node in self.nodes}
        with ThreadPoolExecutor(max_workers=2) as pool:

            def start(cell: CellName, process: int) -> _Started:
                draft, turn = self.cache.draft(), Turn()
                task = replace(self.make_task(nodes[cell], draft, process), turn=turn)
                return _Started((cell, process), draft, turn, pool.submit(execute, task))

            ahead: _Started | None = None
            try:
                for number, (cell, process) in enumerate(order):
                    if cell in self._over:
                        continue
                    if known := self._known(cell, process):
                        label = f"{cell}: process {process + 1}"
                        self.progress.note(
                            f"{label} was measured before an interruption; its results are reused"
                        )
                        self.progress.process_started(str(cell), process, self.processes)
                        self._end(cell, process, known)
                        continue
                    if ahead and ahead.process != (cell, process):
                        self._cancel(ahead)
                        ahead = None
                    running, ahead = ahead or start(cell, process), None
                    self._begin(running)
                    following = order[number + 1 :] if self.device_kind == "cuda" else []
                    # It runs unless the process before it ends its cell.
                    left = (key for key in following if not self._known(*key) and key[0] not in self._over)
                    if key := next(left, None):
                        ahead = start(*key)
                    self._finish_process(running)
            finally:
                if ahead:
                    self._cancel(ahead)
            self._repeat(start)

    def _repeat(self, start: Callable[[CellName, int], _Started]) -> None:
        repeated: set[_Process] = set()
        while doubtful := {key: why for key, why in self._deviations().items() if key not in repeated}:
            for (cell, process), why in doubtful.items():
                repeated.add((cell, process))
                alike = [doubtful.get((cell, each)) for each in self._ended[cell]]
                # All processes alike: the cell's workloads cause it, and will once more.
                first = alike[0]
                always = len(alike) > 1 and all(
                    one and first and one.name == first.name and abs(one.ms / first.ms - 1) <= self._limit
                    for one in alike
                )
                if cell not in self._over and not always:
                    self.progress.note(f"{self._label(cell, process)} is measured again: {why}")
                    again = start(cell, process)
                    self._begin(again)
                    self._finish_process(again)

    def finish(self, store: Callable[[CellName, StoredResult], object]) -> None:
        """Flag processes whose sentinels still deviate, merge those of each cell that is complete, and ``store`` it.

        This also works for an interrupted session. A cell for which there is no space on the disk costs itself only:
        the error is raised after the others were stored.
        """
        deviations = self._deviations()
        errors: list[OSError | ProjectError] = []
        for cell in self.names:
            try:
                ended = sorted(self._ended[cell].items())
                for process, (entry, *_) in ended:
                    self._restore(cell, process)
                    if why := deviations.get((cell, process)):
                        self.progress.note(f"{self._label(cell, process)} is flagged: {why}")
                        flag_records(entry.artifacts)
                result = self.results.get(cell)
                if result is None and ended and (len(ended) == self.processes or cell in self._over):
                    entries = [entry for _, (entry, *_) in ended]
                    result = merge_processes(
                        self.make_draft(cell), entries, self.processes, self._seconds[cell]
                    )
                if result is not None:
                    store(cell, result)
                    self.results[cell] = result
            except (OSError, ProjectError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def unfinished(self) -> dict[CellName, list[Path]]:
        """Return the artifacts of processes that have ended, of cells without a result after an interruption."""
        return {
            cell: [entry.artifacts for _, (entry, *_) in sorted(ended.items())]
            for cell, ended in self._ended.items()
            if ended and cell not in self.results
        }

    def _known(self, cell: CellName, process: int) -> Entry | None:
        return None if cell in self.rerun else self.cache.find(process_key(self.keys[cell].digest, process))

    def _begin(self, started: _Started) -> None:
        cell, process = started.process
        try:
            self.progress.process_started(str(cell), process, self.processes)
        except BaseException:  # else its process would wait for its turn forever, and hold the device
            self._cancel(started)
            raise
        started.turn.set_result(None)

    def _cancel(self, started: _Started) -> None:
        started.turn.cancel()
        with suppress(Exception):
            started.future.result()
        self.cache.discard(started.draft)

    def _finish_process(self, started: _Started) -> None:
        (cell, process), draft = started.process, started.draft
        try:
            wait_for([started.future])
            result = started.future.result()
        except BaseException:  # with a full disk, what had finished needs the space
            self.cache.discard(draft)
            raise
        entry = Entry(draft.folder, result)
        # Kept in case the session is interrupted, or the disk is full; the result of an only process is stored at once.
        if len(self.nodes) * self.processes > 1 and result.status is Status.OK and not result.transient:
            entry = self.cache.commit(draft, process_key(self.keys[cell].digest, process), result)
        self._end(cell, process, entry)

    def _end(self, cell: CellName, process: int, entry: Entry) -> None:
        files = [path for path in entry.artifacts.rglob("*.jsonl") if path.is_file()]
        records = {path: read_file(path) for path in files}
        self._ended[cell][process] = _Ended(entry, records, read_times(entry.artifacts))
        self._seconds[cell] += entry.result.seconds
        unsupported = read_outcome(entry.artifacts).reasons.keys() <= {Status.UNSUPPORTED}
        if entry.result.status is not Status.OK or unsupported:
            self._over.add(cell)
        ended = sum(map(len, self._ended.values()))
        waits = self.processes > 1 and ended < len(self.nodes) * self.processes
        self.progress.process_ended(str(cell), waits)

    def _deviations(self) -> dict[_Process, Deviation]:
        processes = [(cell, process) for cell in self.names for process in sorted(self._ended[cell])]
        times = [self._ended[cell][process].times for cell, process in processes]
        deviations = zip(processes, find_deviations(times, self._limit), strict=True)
        return {process: deviation for process, deviation in deviations if deviation is not None}

    def _restore(self, cell: CellName, process: int) -> None:
        """Write the records of a process again if another cell has changed them since it ended."""
        entry, records, _ = self._ended[cell][process]
        for path in {*entry.artifacts.rglob("*.jsonl")} - records.keys():
            path.unlink()
        for path, data in records.items():
            if path.is_symlink() or not path.is_file() or read_file(path) != data:
                label = self._label(cell, process)
                self.progress.note(f"{label}: another cell changed {path.name}; restored")
                make_folder(path.parent, entry.artifacts, replace=True)
                write_atomically(path, data)

    def _label(self, cell: CellName, process: int) -> str:
        return f"{cell}: process {process + 1} of {self.processes}"
