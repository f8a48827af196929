"""Measuring sessions: the cells of one operator, each in several fresh processes, taking turns on one device.

What differs from process to process (addresses, clocks, what ran before) is then in the records, and a change
during the session affects all cells alike: the order A B C, C B A, A B C cancels a drift.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.measure.judge.runner import Turn
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.own_folders import make_folder
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.run.cache.store import CellCache, Draft, Entry, StoredResult, process_key
from kernels_bench_tools.run.cell import CellTask
from kernels_bench_tools.run.cell_outputs import flag_records, merge_processes, read_outcome, read_times
from kernels_bench_tools.run.process.run import wait_for
from kernels_bench_tools.run.progress import Progress

Times = Mapping[str, Sequence[float]]
"""Sentinel to its milliseconds in one process, in the order they were taken."""

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
    deviations: list[Deviation | None] = []
    for times in session:
        found = []
        for name, values in times.items():
            others = [process[name] for process in session if process.get(name)]
            if not values:
                continue
            of_all = [value for some in others for value in some]
            expected = median(of_all) if len(others) >= FEWEST_PROCESSES else values[0]
            value = max(values, key=lambda value: abs(value - expected))
            if abs(value - expected) > max(limit * expected, SMALLEST_MS):
                found.append(Deviation(name, value, expected))
        deviations.append(max(found, key=lambda one: abs(one.ms / one.expected_ms - 1), default=None))
    return deviations


def process_order(cells: Sequence[CellName], processes: int) -> Iterator[tuple[CellName, int]]:
    """Yield the processes of a session in their order: every other round goes backwards.

    >>> a, b = CellName("a.md", "x"), CellName("b.md", "x")
    >>> [f"{cell.notebook[0]}{process}" for cell, process in process_order([a, b], 3)]
    ['a0', 'b0', 'b1', 'a1', 'a2', 'b2']
    """
    for process in range(processes):
        for cell in cells if process % 2 == 0 else reversed(cells):
            yield cell, process


Execute = Callable[[CellTask, Turn], StoredResult]


@dataclass(frozen=True)
class _Ahead:
    key: tuple[CellName, int]
    draft: Draft
    turn: Turn
    future: Future[StoredResult]


@dataclass
class Session:
    """Cells that measure on one device, one process at a time."""

    nodes: Sequence[Node]
    processes: int
    """In how many fresh processes each cell is run."""
    device_kind: str
    keys: Mapping[CellName, str]
    rerun: Set[CellName]
    """Cells for which no process of an interrupted build is reused."""
    cache: CellCache
    progress: Progress
    make_task: Callable[[Node, Draft, int], CellTask]
    """Returns one process of a cell, given its draft and its number."""
    make_draft: Callable[[CellName], Draft]
    """Returns the draft for the merged result of a cell."""
    results: dict[CellName, StoredResult] = field(default_factory=dict)
    """The merged results, once :meth:`finish` was called, or as another executor has set them."""
    _runs: dict[CellName, dict[int, Entry]] = field(default_factory=lambda: defaultdict(dict))
    _records: dict[tuple[CellName, int], dict[Path, bytes]] = field(default_factory=dict)
    """The files of records of each process: another cell of the session could change them on the disk."""
    _seconds: dict[CellName, float] = field(default_factory=lambda: defaultdict(float))
    _over: set[CellName] = field(default_factory=set)
    """Cells that need no more processes: one failed, or found that nothing is supported."""

    @property
    def _limit(self) -> float:
        return LIMITS.get(self.device_kind, LIMITS["cuda"])

    @property
    def names(self) -> list[CellName]:
        return [node.name for node in self.nodes]

    def run(self, execute: Execute) -> None:
        """Measure all cells; a process with deviating sentinels is run once more.

        On a GPU the next process starts to import while one measures.
        """
        order = list(process_order(self.names, self.processes))
        with ThreadPoolExecutor(max_workers=2) as pool:
            ahead: _Ahead | None = None
            try:
                for number, (cell, process) in enumerate(order):
                    if cell in self._over:
                        continue
                    if known := self._known(cell, process):
                        what = f"{cell}: process {process + 1} is known, from a build that was interrupted"
                        self.progress.note(what)
                        self.progress.process_started(str(cell), process, self.processes)
                        self._ended(cell, process, known)
                        continue
                    if ahead and ahead.key != (cell, process):
                        self._cancel(ahead)
                        ahead = None
                    running, ahead = ahead or self._start(pool, execute, cell, process), None
                    self._go(running)
                    following = order[number + 1 :] if self.device_kind == "cuda" else []
                    # It runs unless the process before it ends its cell.
                    left = (key for key in following if not self._known(*key) and key[0] not in self._over)
                    key = next(left, None)
                    ahead = self._start(pool, execute, *key) if key else None
                    self._finish_process(running)
            finally:
                if ahead:
                    self._cancel(ahead)
            self._repeat(pool, execute)

    def _repeat(self, pool: ThreadPoolExecutor, execute: Execute) -> None:
        repeated: set[tuple[CellName, int]] = set()
        while doubtful := {key: why for key, why in self._deviations().items() if key not in repeated}:
            for (cell, process), why in doubtful.items():
                repeated.add((cell, process))
                alike = [doubtful.get((cell, each)) for each in self._runs[cell]]
                # All processes alike: the cell's workloads cause it, and will once more.
                first = alike[0]
                always = len(alike) > 1 and all(
                    one and first and one.name == first.name and abs(one.ms / first.ms - 1) <= self._limit
                    for one in alike
                )
                if cell not in self._over and not always:
                    self.progress.note(f"{self._label(cell, process)} is measured again: {why}")
                    again = self._start(pool, execute, cell, process)
                    self._go(again)
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
                for process in self._runs[cell]:
                    if why := deviations.get((cell, process)):
                        self.progress.note(f"{self._label(cell, process)} is flagged: {why}")
                        flag_records(self._runs[cell][process].artifacts)
                result, runs = self.results.get(cell), self._runs[cell]
                if result is None and runs and (len(runs) == self.processes or cell in self._over):
                    ordered = [run for _, run in sorted(runs.items())]
                    draft, seconds = self.make_draft(cell), self._seconds[cell]
                    result = merge_processes(draft, ordered, self.processes, seconds)
                if result is not None:
                    store(cell, result)
                    self.results[cell] = result
            except (OSError, ProjectError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _restore(self, cell: CellName, process: int) -> None:
        """Write the records of a process again if another cell has changed them since it ended."""
        kept, folder = self._records[cell, process], self._runs[cell][process].artifacts
        for path in {*folder.rglob("*.jsonl")} - kept.keys():
            path.unlink()
        for path, data in kept.items():
            if path.is_symlink() or not path.is_file() or path.read_bytes() != data:
                self.progress.note(
                    f"{self._label(cell, process)}: another cell changed {path.name}; restored"
                )
                make_folder(path.parent, folder, replace=True)
                write_atomically(path, data)

    def unfinished(self) -> dict[CellName, list[Path]]:
        """Return the artifacts of processes that have ended, of cells without a result after an interruption."""
        return {
            cell: [run.artifacts for _, run in sorted(runs.items())]
            for cell, runs in self._runs.items()
            if runs and cell not in self.results
        }

    def _known(self, cell: CellName, process: int) -> Entry | None:
        return None if cell in self.rerun else self.cache.find(process_key(self.keys[cell], process))

    def _start(self, pool: ThreadPoolExecutor, execute: Execute, cell: CellName, process: int) -> _Ahead:
        draft = self.cache.draft()
        node = next(node for node in self.nodes if node.name == cell)
        turn = Turn()
        future = pool.submit(execute, self.make_task(node, draft, process), turn)
        return _Ahead((cell, process), draft, turn, future)

    def _go(self, running: _Ahead) -> None:
        try:
            self.progress.process_started(str(running.key[0]), running.key[1], self.processes)
        except BaseException:  # else its process would wait for its turn forever, and hold the device
            self._cancel(running)
            raise
        running.turn.set_result(None)

    def _cancel(self, ahead: _Ahead) -> None:
        ahead.turn.cancel()
        with suppress(Exception):
            ahead.future.result()
        self.cache.discard(ahead.draft)

    def _finish_process(self, running: _Ahead) -> None:
        cell, process = running.key
        try:
            wait_for([running.future])
            result = running.future.result()
        except BaseException:  # with a full disk, what had finished needs the space
            self.cache.discard(running.draft)
            raise
        run = Entry(running.draft.folder, result)
        # Kept in case the session is interrupted, or the disk is full; the result of an only process is stored at once.
        if len(self.nodes) * self.processes > 1 and result.status is Status.OK and not result.transient:
            run = self.cache.commit(running.draft, process_key(self.keys[cell], process), result)
        self._ended(cell, process, run)

    def _ended(self, cell: CellName, process: int, run: Entry) -> None:
        self._runs[cell][process] = run
        files = run.artifacts.rglob("*.jsonl")
        self._records[cell, process] = {path: path.read_bytes() for path in files if path.is_file()}
        self._seconds[cell] += run.result.seconds
        unsupported = read_outcome(run.artifacts).reasons.keys() <= {Status.UNSUPPORTED}
        if run.result.status is not Status.OK or unsupported:
            self._over.add(cell)
        ended = sum(len(runs) for runs in self._runs.values())
        waits = self.processes > 1 and ended < len(self.nodes) * self.processes
        self.progress.process_ended(str(cell), waits)

    def _deviations(self) -> dict[tuple[CellName, int], Deviation]:
        keys = [(cell, process) for cell in self.names for process in sorted(self._runs[cell])]
        for key in keys:
            self._restore(*key)
        times = [read_times(self._runs[cell][process].artifacts) for cell, process in keys]
        found = zip(keys, find_deviations(times, self._limit), strict=True)
        return {key: deviation for key, deviation in found if deviation is not None}

    def _label(self, cell: CellName, process: int) -> str:
        return f"{cell}: process {process + 1} of {self.processes}"
