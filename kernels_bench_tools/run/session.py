"""The session of one operator's cells on one device, from holding the device to what each process left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.run.cache.store import CellCache, Draft, StoredResult, process_key
from kernels_bench_tools.run.cell import finish
from kernels_bench_tools.run.executor import Bench, Errand, LostPlaceError, Workplace
from kernels_bench_tools.run.merge import ProcessRun
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.rounds import Session
from kernels_bench_tools.run.sentinels import LIMITS
from kernels_bench_tools.schema.record import Failure, Status

LIVES = 3
"""A cell whose process has lost its place as often as this is what loses them."""


def lost_failure(times: int) -> Failure:
    """Return why a cell crashed that was running whenever its worker was lost."""
    return Failure(type="WorkerLost", msg=f"its worker was lost {times} times while it ran")


@dataclass
class Measurement:
    """A session that keeps each process as it ends, and starts anew where its device was lost."""

    nodes: Sequence[Node]
    processes: int
    """In how many fresh processes each cell is run."""
    keys: Mapping[CellName, str]
    rerun: Set[CellName]
    cache: CellCache
    workplace: Workplace
    progress: Progress
    errand: Callable[[CellName, int, Draft], Errand]
    """Makes what is to be run of a cell's process, given its draft."""
    drafts: list[Draft] = field(default_factory=list)
    """What was begun here; discarded by whoever made this, when all is over."""
    _session: Session | None = None
    _bench: Bench = field(init=False, repr=False)
    _asked: set[str] = field(default_factory=set)
    _lost: Counter[CellName] = field(default_factory=Counter)

    @property
    def names(self) -> list[CellName]:
        """The cells, in the order of the first round."""
        return [node.name for node in self.nodes]

    def run(self) -> None:
        """Measure all cells.

        Raises:
            InterruptedBuildError: What has ended is kept.
            LostPlaceError: Its device was lost again and again.
        """
        unexplained = 0
        while True:
            self._session = self._new_session()
            try:
                self._measure(self._session)
            except LostPlaceError as lost:
                if lost.cell is None:
                    unexplained += 1
                    if unexplained == LIVES:
                        raise
                else:
                    self._lost[lost.cell] += 1
                self._start_anew(lost)
            else:
                return

    def finish(self, draft: Callable[[CellName], Draft]) -> list[tuple[CellName, StoredResult]]:
        """Return the results of the cells that have one, also of an interrupted session.

        Args:
            draft: Returns a cell's own draft, into which what its processes left is put.
        """
        if self._session is None:
            return []
        self._session.flag()
        return [(name, self._session.join(name, draft(name))) for name in self._session.complete()]

    @property
    def unfinished(self) -> dict[CellName, list[Draft]]:
        """What processes left that have ended, of cells that have no result since the session was interrupted."""
        return self._session.unfinished() if self._session is not None else {}

    @property
    def cancelled(self) -> set[CellName]:
        """The cells whose results nobody wants any more."""
        return self._session.cancelled if self._session is not None else set()

    def _new_session(self) -> Session:
        limit = LIMITS.get(self.workplace.device.kind, LIMITS["cuda"])
        return Session(self.names, self.processes, limit, self._run_process, self.progress)

    def _measure(self, session: Session) -> None:
        with self.workplace.measuring(self.nodes) as bench:
            self._bench = bench
            session.run()

    def _start_anew(self, lost: LostPlaceError) -> None:
        """Forget what was measured on a device that is gone: the numbers of a table come from one device."""
        for name in self.names:
            self.cache.drop_processes(self.keys[name])
        self._asked.clear()
        told = f" while {lost.cell} ran" if lost.cell else ""
        self.progress.note(f"{lost.place} was lost{told}; its session starts anew elsewhere")

    def _run_process(self, name: CellName, process: int) -> ProcessRun:
        key = process_key(self.keys[name], process)
        # What this session has measured and asks for again, it wants measured again.
        known = None if key in self._asked or name in self.rerun else self.cache.find(key)
        self._asked.add(key)
        if known is not None:
            self.progress.note(f"{name}: process {process + 1} is known, from a build that was interrupted")
            return ProcessRun(Draft(known.folder), known.result)
        draft = self._draft()
        errand = self.errand(name, process, draft)
        if self._lost[name] == LIVES:
            return ProcessRun(draft, finish(errand.task, Status.CRASHED, lost_failure(LIVES)))
        result = self._bench.run(errand)
        if result.status is not Status.OK or self.processes == 1:
            return ProcessRun(draft, result)
        # What ended well is kept, should the session be interrupted.
        return ProcessRun(Draft(self.cache.commit(draft, key, result).folder), result)

    def _draft(self) -> Draft:
        draft = self.cache.draft()
        self.drafts.append(draft)
        return draft
