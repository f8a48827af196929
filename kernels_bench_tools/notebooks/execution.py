"""Runs the cells of one build whose results are not known.

All environments are made first. Then cells that measure run one at a time with nothing beside them, and
the others side by side. A cell runs when the cells that it needs have ended, well or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernels_bench_tools.devices import Device
from kernels_bench_tools.notebooks.cache import CellCache, Draft, Entry, StoredResult
from kernels_bench_tools.notebooks.checkout import Checkout
from kernels_bench_tools.notebooks.environments import CellEnvironment, Prepared, write_script
from kernels_bench_tools.notebooks.fingerprints import Fingerprints
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.handover import cell_context, cell_needs, hand_over
from kernels_bench_tools.notebooks.locks import device_lock
from kernels_bench_tools.notebooks.outputs import hide_paths, without_paths
from kernels_bench_tools.notebooks.processes import Processes
from kernels_bench_tools.notebooks.progress import Progress
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.reporting import describe_cell
from kernels_bench_tools.notebooks.requirements import unmet_requirement
from kernels_bench_tools.notebooks.runner import CellTask, finish, run_cell
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
    jobs: int
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
            for draft in self._drafts.values():
                self.cache.discard(draft)

    def _is_settled(self, name: CellName) -> bool:
        """Settle a cell that need not run, or cannot; return whether that is done.

        It cannot be told, and is not done, before the cells that it needs are settled.
        """
        node = self.graph.nodes[name]
        if any(need not in self.results for need in node.needs):
            return False
        # Kept, since what it is made of may be edited while the cell runs.
        self._keys[name] = self.fingerprints.key(node, self.results)
        known = self.cache.find(self._keys[name])
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

    def _end_unstarted(self, node: Node, status: Status, failure: Failure, tried: bool) -> None:
        task = self._task(node)
        self._commit(node.name, finish(task, status, failure, started=tried))

    def _prepare(self, stale: Sequence[CellName], pool: ThreadPoolExecutor) -> None:
        """Make the environments of all cells that may have to run."""
        nodes = [self.graph.nodes[name] for name in stale]
        nodes = [node for node in nodes if not unmet_requirement(node.notebook.front, self.device)]
        for node in nodes:
            write_script(node.notebook.script_path(node.cell), self.environment.script(node.cell))
            self._draft(node.name)
        futures = {pool.submit(self._prepare_one, node): node.name for node in nodes}
        for future in futures:
            self._prepared[futures[future]] = future.result()

    def _prepare_one(self, node: Node) -> Prepared:
        name = str(node.name)
        self.progress.environment_started(name)
        log = self._drafts[node.name].environment_log
        try:
            prepared = self.environment.prepare(node.notebook.script_path(node.cell), log, self.processes)
        except OSError as error:
            prepared = Prepared(reason=f"its environment cannot be made: {error}")
        hide_paths(log, self._hidden)
        reason = without_paths(prepared.reason.encode(), self._hidden).decode()
        prepared = replace(prepared, reason=reason)
        self.progress.environment_finished(name, prepared.seconds, not prepared.reason)
        return prepared

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
                started = ready[:1]
                with device_lock(self.device.slug, self.progress):
                    self._start(ready[0], pool)
                    self._collect()
            elif not settled:
                self._collect()
            waiting = [name for name in waiting if name not in settled and name not in started]

    def _is_ready(self, name: CellName) -> bool:
        return all(need in self.results for need in self.graph.nodes[name].needs)

    def _start(self, name: CellName, pool: ThreadPoolExecutor) -> None:
        self._running[pool.submit(self._run_one, self.graph.nodes[name])] = name

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

    def _run_one(self, node: Node) -> StoredResult:
        """Run a cell; this is the part that happens beside others."""
        name, task = str(node.name), self._task(node)
        self.progress.cell_started(name)
        tail = Tail(
            [task.draft.stdout, task.draft.stderr], lambda line: self.progress.cell_output(name, line)
        )

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

    def _task(self, node: Node) -> CellTask:
        context = cell_context(node, self.environment.name, self.workloads, self.checkout)
        return CellTask(str(node.name), node.cell, context, self.device, self._draft(node.name), self._hidden)

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
