"""Runs the cells of one build whose results are not known.

All environments are made first. Then cells that measure run one at a time with nothing beside them, those
of one operator taking turns, and the others side by side; a workplace with several devices holds several
sessions. A cell runs when the cells that it needs have ended, well or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.notebooks.front_matter import unmet_requirement
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.key import Fingerprints
from kernels_bench_tools.run.cache.store import CellCache, Draft, Entry, StoredResult
from kernels_bench_tools.run.cell import CellTask, finish
from kernels_bench_tools.run.cell_inputs import cell_context, cell_needs
from kernels_bench_tools.run.checkout import Checkout
from kernels_bench_tools.run.environment.base import Prepared
from kernels_bench_tools.run.executor import Errand, Workplace
from kernels_bench_tools.run.limits import CellPolicy
from kernels_bench_tools.run.process.run import CancelledCellError, wait_for
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.ready_queue import Agenda
from kernels_bench_tools.run.result import describe_cell
from kernels_bench_tools.run.session import Measurement
from kernels_bench_tools.schema.record import Failure, Status


def never(_name: CellName) -> bool:
    """Say that a cell is not outdated."""
    return False


@dataclass
class Execution:
    """The running part of a build."""

    project: Project
    graph: Graph
    workplace: Workplace
    workloads: str
    mode: str
    process_count: int
    """In how many fresh processes each cell that measures is run."""
    thorough_count: int
    """Results of this many processes are as good, where they are known; 0 for no other count."""
    cache: CellCache
    fingerprints: Fingerprints
    checkout: Checkout
    progress: Progress
    policy: CellPolicy = CellPolicy()  # noqa: RUF009 - it cannot be changed
    """What cells may use."""
    retry: bool = True
    """Whether cells that failed run again although nothing about them has changed."""
    outdated: Callable[[CellName], bool] = never
    """Asked now and then of each cell that runs: if so, it is ended and keeps the result it had."""
    results: dict[CellName, Entry] = field(default_factory=dict)
    """How each cell ended, as far as the build has come."""
    ran: set[CellName] = field(default_factory=set)
    """The cells whose results are new."""
    unfinished: dict[CellName, list[Path]] = field(default_factory=dict)
    """Folders of what processes left that had ended when the build was interrupted, of cells of which not all had."""
    _keys: dict[CellName, str] = field(default_factory=dict)
    _rerun: set[CellName] = field(default_factory=set)
    _drafts: dict[CellName, Draft] = field(default_factory=dict)
    _prepared: dict[CellName, Prepared] = field(default_factory=dict)
    _running: dict[Future[StoredResult], CellName] = field(default_factory=dict)
    _sessions: dict[Future[None], Measurement] = field(default_factory=dict)
    _measured: list[Measurement] = field(default_factory=list)
    """Every session that was begun."""
    _left: set[CellName] = field(default_factory=set)
    """Cells that this build leaves as they were last: outdated while they ran, or in need of one that was."""

    def run(self, cells: Sequence[CellName], rerun: set[CellName]) -> None:
        """Bring every one of ``cells``, which are in an order in which they can run, to a result.

        Args:
            cells: The cells, with everything that they need.
            rerun: Those to run although their results are known.

        Raises:
            KeyboardInterrupt: As it came; every process has ended, and what had ended before is kept.
        """
        self._rerun = rerun
        stale = [name for name in cells if not self._is_settled(name)]
        try:
            sessions = self.workplace.sessions if self.workplace.apart else 0
            with ThreadPoolExecutor(self.workplace.jobs + sessions) as pool:
                try:
                    self._prepare(stale, pool)
                    self._run_all(stale, pool)
                except BaseException:
                    self.workplace.interrupt()
                    pool.shutdown(cancel_futures=True)
                    self._keep_finished()
                    raise
        finally:
            begun = [draft for measurement in self._measured for draft in measurement.drafts]
            for draft in [*self._drafts.values(), *begun]:
                self.cache.discard(draft)

    def _is_settled(self, name: CellName) -> bool:
        """Settle a cell that need not run, or cannot; return whether that is done.

        It cannot be told, and is not done, before the cells that it needs are settled.
        """
        node = self.graph.nodes[name]
        if any(need in self._left for need in node.needs):
            self._left.add(name)
            return True
        if any(need not in self.results for need in node.needs):
            return False
        # Once is enough: the key stays what it was, as the needs' results do.
        known = None if name in self._keys else self._find(node)
        unmet = unmet_requirement(node.notebook.front, self.workplace.device)
        if known and (known.is_final or not self.retry) and (unmet or name not in self._rerun):
            self._settle(name, known)
            return True
        failed = self._prepared.get(name, Prepared()).reason
        if unmet:
            self._end_unstarted(node, Status.UNSUPPORTED, Failure(type="Unsupported", msg=unmet), False)
        elif failed:
            self._end_unstarted(node, Status.ERROR, Failure(type="Resolution", msg=failed), True)
        return bool(unmet or failed)

    def _find(self, node: Node) -> Entry | None:
        """Return what is known of a cell, and keep the key under which its result belongs."""
        if self.thorough_count and node.name not in self._rerun:
            thorough = self.cache.find(self.fingerprints.key(node, self.results, self.thorough_count))
            if thorough and thorough.is_final:
                return thorough
        # Kept, since what it is made of may be edited while the cell runs.
        self._keys[node.name] = self.fingerprints.key(node, self.results, self.process_count)
        return self.cache.find(self._keys[node.name])

    def _end_unstarted(self, node: Node, status: Status, failure: Failure, tried: bool) -> None:
        task = self._task(node, self._draft(node.name))
        self._commit(node.name, finish(task, status, failure, started=tried))

    def _prepare(self, stale: Sequence[CellName], pool: ThreadPoolExecutor) -> None:
        """Make the environments of all cells that may have to run."""
        nodes = [self.graph.nodes[name] for name in stale]
        nodes = [node for node in nodes if not unmet_requirement(node.notebook.front, self.workplace.device)]
        logs = {node.name: self._draft(node.name).environment_log for node in nodes}
        self._prepared = self.workplace.prepare(nodes, logs, pool)

    def _run_all(self, stale: Sequence[CellName], pool: ThreadPoolExecutor) -> None:
        agenda = Agenda(self.graph, stale, self._last_seconds(stale))
        measuring: list[CellName] = []
        while True:
            while len(self._running) < self.workplace.jobs and (name := agenda.take()) is not None:
                if self._is_settled(name):
                    agenda.end(name)
                elif self.graph.nodes[name].cell.measures:
                    measuring.append(name)
                else:  # these go first: what they show is then seen early
                    self._start(name, pool)
            measuring = self._start_sessions(agenda.order(measuring), pool)
            if not self._running and not self._sessions:
                return
            for name in self._collect():
                agenda.end(name)

    def _last_seconds(self, names: Sequence[CellName]) -> dict[CellName, float]:
        """Return how long cells took when they last ran, of those that have."""
        entries = ((name, self.cache.last(name)) for name in names)
        return {name: one.result.seconds for name, one in entries if one and one.result.exit_code is not None}

    def _group(self, name: CellName) -> str:
        """Return what is the same for the cells that take turns: their operator, or else their notebook."""
        return self.graph.nodes[name].notebook.operator or name.notebook

    def _start_sessions(self, ready: list[CellName], pool: ThreadPoolExecutor) -> list[CellName]:
        """Start as many sessions of cells that are ready as there is room for; return the cells of no session."""
        place = self.workplace
        while len(self._sessions) < place.sessions and (place.apart or not (self._running or self._sessions)):
            busy = {self._group(one.names[0]) for one in self._sessions.values()}
            group = next((group for group in map(self._group, ready) if group not in busy), None)
            if group is None:
                break
            # By name, not by how long they took: a session's order is the same in every build.
            measurement = self._measurement(sorted(name for name in ready if self._group(name) == group))
            self._measured.append(measurement)
            self._sessions[pool.submit(measurement.run)] = measurement
            ready = [name for name in ready if self._group(name) != group]
        return ready

    def _measurement(self, names: Sequence[CellName]) -> Measurement:
        def errand(name: CellName, process: int, draft: Draft) -> Errand:
            return self._errand(self.graph.nodes[name], self._task(self.graph.nodes[name], draft, process))

        return Measurement(
            nodes=[self.graph.nodes[name] for name in names],
            processes=self.process_count,
            keys=self._keys,
            rerun=self._rerun,
            cache=self.cache,
            workplace=self.workplace,
            progress=self.progress,
            errand=errand,
        )

    def _start(self, name: CellName, pool: ThreadPoolExecutor) -> None:
        self.progress.cell_started(str(name))
        node = self.graph.nodes[name]
        errand = self._errand(node, self._task(node, self._draft(name)))
        self._running[pool.submit(self.workplace.run, errand)] = name

    def _collect(self) -> list[CellName]:
        """Wait until a cell or a session has ended, and keep what came of it; return which cells have ended."""
        done = wait_for([*self._running, *self._sessions], first=True)
        ended: list[CellName] = []
        for future in [future for future in self._running if future in done]:
            try:
                result = future.result()
            except CancelledCellError:
                ended.append(self._running.pop(future))
                self._leave(ended[-1])
            else:
                ended.append(self._running.pop(future))
                self._commit(ended[-1], result)
        for session in [session for session in self._sessions if session in done]:
            session.result()
            ended += self._close(self._sessions.pop(session))
        return ended

    def _close(self, measurement: Measurement) -> Sequence[CellName]:
        for name, result in measurement.finish(self._draft):
            self._commit(name, result)
            self.cache.drop_processes(self._keys[name])
        for name in measurement.cancelled:
            self._leave(name)
        return measurement.names

    def _leave(self, name: CellName) -> None:
        """Leave a cell as it was last, since what was begun is outdated."""
        self._left.add(name)
        self.progress.process_ended(str(name))
        self.progress.note(f"{name}: cancelled, since it is outdated")

    def _keep_finished(self) -> None:
        for future, name in self._running.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                self._commit(name, future.result())
        for measurement in self._sessions.values():
            self._close(measurement)
            for name, drafts in measurement.unfinished.items():
                self.unfinished[name] = [draft.artifacts for draft in drafts]

    def _errand(self, node: Node, task: CellTask) -> Errand:
        return Errand(
            node=node,
            task=task,
            prepared=self._prepared[node.name],
            needs=cell_needs(self.project, self.graph, node, self.results, self.workplace.device),
            results=self.results,
            output=lambda line: self.progress.cell_output(task.name, line),
            cancelled=lambda: self.outdated(node.name),
        )

    def _task(self, node: Node, draft: Draft, process: int = 0) -> CellTask:
        count = self.process_count if node.cell.measures else 1
        context = cell_context(
            node,
            self.workplace.environment.name,
            self.workloads,
            self.checkout,
            mode=self.mode,
            process=process,
            processes=count,
        )
        return CellTask(
            str(node.name), node.cell, context, self.workplace.device, draft, self._hidden, self.policy
        )

    @property
    def _hidden(self) -> dict[Path, str]:
        return {self.project.root: ""}

    def _draft(self, name: CellName) -> Draft:
        if name not in self._drafts:
            self._drafts[name] = self.cache.draft()
        return self._drafts[name]

    def _commit(self, name: CellName, result: StoredResult) -> None:
        self.ran.add(name)
        result.parts = self.fingerprints.parts_of(self._keys[name])
        self._settle(name, self.cache.commit(self._drafts.pop(name), self._keys[name], result))

    def _settle(self, name: CellName, entry: Entry) -> None:
        self.results[name] = entry
        self.cache.remember(name, entry)
        run = describe_cell(self.project, self.graph.nodes[name].cell, entry, cached=name not in self.ran)
        self.progress.cell_finished(str(name), run)
