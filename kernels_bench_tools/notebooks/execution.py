"""Runs the cells of one build whose results are not known.

All environments are made first. Then cells that measure run one at a time with nothing beside them, those
of one operator taking turns, and the others side by side. A cell runs when the cells that it needs have
ended, well or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.devices import Device
from kernels_bench_tools.notebooks.cache import CellCache, Draft, Entry, StoredResult, process_key
from kernels_bench_tools.notebooks.checkout import Checkout
from kernels_bench_tools.notebooks.environments import CellEnvironment, Prepared
from kernels_bench_tools.notebooks.fingerprints import Fingerprints
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.handover import cell_context, cell_needs, hand_over
from kernels_bench_tools.notebooks.joining import ProcessRun
from kernels_bench_tools.notebooks.locks import device_lock
from kernels_bench_tools.notebooks.preparation import Preparation
from kernels_bench_tools.notebooks.processes import Processes
from kernels_bench_tools.notebooks.progress import Progress
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.reporting import describe_cell
from kernels_bench_tools.notebooks.requirements import unmet_requirement
from kernels_bench_tools.notebooks.runner import CellTask, finish, run_cell
from kernels_bench_tools.notebooks.sentinels import LIMITS
from kernels_bench_tools.notebooks.sessions import Session
from kernels_bench_tools.notebooks.tail import Tail
from kernels_bench_tools.records import Failure, Status


@dataclass
class Execution:
    """The running part of a build."""

    project: Project
    graph: Graph
    device: Device
    environment: CellEnvironment
    workloads: str
    mode: str
    jobs: int
    process_count: int
    """In how many fresh processes each cell that measures is run."""
    thorough_count: int
    """Results of this many processes are as good, where they are known; 0 for no other count."""
    cache: CellCache
    fingerprints: Fingerprints
    checkout: Checkout
    progress: Progress
    results: dict[CellName, Entry] = field(default_factory=dict)
    """How each cell ended, as far as the build has come."""
    ran: set[CellName] = field(default_factory=set)
    """The cells whose results are new."""
    processes: Processes = field(default_factory=Processes)
    _keys: dict[CellName, str] = field(default_factory=dict)
    _rerun: set[CellName] = field(default_factory=set)
    _drafts: dict[CellName, Draft] = field(default_factory=dict)
    _process_drafts: list[Draft] = field(default_factory=list)
    _prepared: dict[CellName, Prepared] = field(default_factory=dict)
    _running: dict[Future[StoredResult], CellName] = field(default_factory=dict)

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
            with ThreadPoolExecutor(self.jobs) as pool:
                try:
                    self._prepare(stale, pool)
                    self._run_all(stale, pool)
                except BaseException:
                    self.processes.interrupt()
                    pool.shutdown(cancel_futures=True)
                    self._keep_finished()
                    raise
        finally:
            for draft in [*self._drafts.values(), *self._process_drafts]:
                self.cache.discard(draft)

    def _is_settled(self, name: CellName) -> bool:
        """Settle a cell that need not run, or cannot; return whether that is done.

        It cannot be told, and is not done, before the cells that it needs are settled.
        """
        node = self.graph.nodes[name]
        if any(need not in self.results for need in node.needs):
            return False
        known = self._find(node)
        unmet = unmet_requirement(node.notebook.front, self.device)
        if known and known.is_final and (unmet or name not in self._rerun):
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
        nodes = [node for node in nodes if not unmet_requirement(node.notebook.front, self.device)]
        logs = {node.name: self._draft(node.name).environment_log for node in nodes}
        preparation = Preparation(self.environment, self.processes, self.progress, self._hidden)
        self._prepared = preparation.prepare(nodes, logs, pool)

    def _run_all(self, stale: Sequence[CellName], pool: ThreadPoolExecutor) -> None:
        waiting = list(stale)
        while waiting or self._running:
            ready = [name for name in waiting if self._is_ready(name)]
            settled = [name for name in ready if self._is_settled(name)]
            # Cells that do not measure go first: what they show is then seen early.
            beside = [name for name in ready if not self.graph.nodes[name].cell.measures]
            started = [] if settled else beside[: self.jobs - len(self._running)]
            for name in started:
                self._start(name, pool)
            if not settled and not self._running:
                group = self._group(ready[0])
                started = [name for name in ready if self._group(name) == group]
                self._measure(started, pool)
            elif not settled:
                self._collect()
            waiting = [name for name in waiting if name not in settled and name not in started]

    def _group(self, name: CellName) -> str:
        """Return what is the same for the cells that take turns: their operator, or else their notebook."""
        return self.graph.nodes[name].notebook.operator or name.notebook

    def _measure(self, names: Sequence[CellName], pool: ThreadPoolExecutor) -> None:
        asked: set[str] = set()

        def run(name: CellName, process: int) -> ProcessRun:
            key = process_key(self._keys[name], process)
            # What this session has measured and asks for again, it wants measured again.
            known = None if key in asked or name in self._rerun else self.cache.find(key)
            asked.add(key)
            if known is not None:
                self.progress.note(
                    f"{name}: process {process + 1} is known, from a build that was interrupted"
                )
                return ProcessRun(Draft(known.folder), known.result)
            return self._run_process(name, process, key, pool)

        limit = LIMITS.get(self.device.kind, LIMITS["cuda"])
        session = Session(names, self.process_count, limit, run, self.progress)
        try:
            with device_lock(self.device.slug, self.progress):
                session.run()
        finally:  # also of an interrupted session: what it has finished is kept
            session.flag()
            for name in session.complete():
                self._commit(name, session.join(name, self._draft(name)))
                self.cache.drop_processes(self._keys[name])

    def _run_process(self, name: CellName, process: int, key: str, pool: ThreadPoolExecutor) -> ProcessRun:
        """Run a process of a cell; what ended well is kept, should the session be interrupted."""
        node, draft = self.graph.nodes[name], self.cache.draft()
        self._process_drafts.append(draft)
        # In the pool, so that this thread hears of an interruption.
        result = pool.submit(self._run_one, node, self._task(node, draft, process)).result()
        if result.status is not Status.OK or self.process_count == 1:
            return ProcessRun(draft, result)
        return ProcessRun(Draft(self.cache.commit(draft, key, result).folder), result)

    def _is_ready(self, name: CellName) -> bool:
        return all(need in self.results for need in self.graph.nodes[name].needs)

    def _start(self, name: CellName, pool: ThreadPoolExecutor) -> None:
        self.progress.cell_started(str(name))
        node = self.graph.nodes[name]
        self._running[pool.submit(self._run_one, node, self._task(node, self._draft(name)))] = name

    def _collect(self) -> None:
        """Wait until a cell has ended, and keep its result."""
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in [future for future in self._running if future in done]:
            result = future.result()
            self._commit(self._running.pop(future), result)

    def _keep_finished(self) -> None:
        for future, name in self._running.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                self._commit(name, future.result())

    def _run_one(self, node: Node, task: CellTask) -> StoredResult:
        """Run a process of a cell; this is the part that happens beside others."""
        logs = [task.draft.stdout, task.draft.stderr]
        tail = Tail(logs, lambda line: self.progress.cell_output(task.name, line))

        def tell(folder: Path) -> dict[str, str]:
            needs = cell_needs(self.project, self.graph, node, self.results, self.device)
            return hand_over(folder, task.context, needs, node, self.results)

        python = self._prepared[node.name].python
        script = node.notebook.script_path(node.cell)
        try:
            return run_cell(task, python, script, self.environment, tell, self.processes, tail.look)
        except OSError as error:
            failure = Failure(type=type(error).__name__, msg=str(error))
            return finish(task, Status.ERROR, failure)

    def _task(self, node: Node, draft: Draft, process: int = 0) -> CellTask:
        count = self.process_count if node.cell.measures else 1
        context = cell_context(
            node,
            self.environment.name,
            self.workloads,
            self.checkout,
            mode=self.mode,
            process=process,
            processes=count,
        )
        return CellTask(str(node.name), node.cell, context, self.device, draft, self._hidden)

    @property
    def _hidden(self) -> dict[Path, str]:
        return {self.project.root: ""}

    def _draft(self, name: CellName) -> Draft:
        if name not in self._drafts:
            self._drafts[name] = self.cache.draft()
        return self._drafts[name]

    def _commit(self, name: CellName, result: StoredResult) -> None:
        self.ran.add(name)
        self._settle(name, self.cache.commit(self._drafts.pop(name), self._keys[name], result))

    def _settle(self, name: CellName, entry: Entry) -> None:
        self.results[name] = entry
        self.cache.remember(name, entry)
        run = describe_cell(self.project, self.graph.nodes[name].cell, entry, cached=name not in self.ran)
        self.progress.cell_finished(str(name), run)
