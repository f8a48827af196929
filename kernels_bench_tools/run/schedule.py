"""Runs the cells of one build whose results are not known.

All environments are made first. Then the measuring cells of one operator run as a session with nothing beside
them, and other cells run side by side. An executor with several devices runs several sessions at once. A cell
runs when the cells that it needs have ended, successfully or not.

A long build first runs the cells that summarize committed records, with what else they need as it is stored or absent,
and publishes. It publishes again between sessions. Nothing of this process runs while a processor is measured; beside
sessions on the GPUs of a cluster it may.
"""

from __future__ import annotations

import os
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.git import Checkout
from kernels_bench_tools.notebooks.front_matter import unmet_requirement
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.project import CellPolicy
from kernels_bench_tools.records.code import harness_version
from kernels_bench_tools.records.committed import is_committed
from kernels_bench_tools.records.record import Failure, Provenance, Status
from kernels_bench_tools.records.request import USUAL_REQUEST, CellContext
from kernels_bench_tools.run.cache.key import Fingerprints
from kernels_bench_tools.run.cache.store import (
    CellCache,
    DamagedEntryError,
    Draft,
    Entry,
    StoredResult,
    read_entry,
)
from kernels_bench_tools.run.cell import CellTask, describe_cell
from kernels_bench_tools.run.cell_outputs import read_outcome
from kernels_bench_tools.run.environment.base import Prepared, torch_notice
from kernels_bench_tools.run.executor import Executor
from kernels_bench_tools.run.process.run import wait_for
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import Session

LONG_SECONDS = 15.0
"""Results of a build that is expected to take at least this long are published while it runs."""
SHOW_SECONDS = 5.0
"""The shortest time between two publications."""
SHOW_SHARE = 0.05
"""The largest share of a build's time that they take."""


def is_baseline(graph: Graph, name: CellName) -> bool:
    """Return whether a cell is a baseline's, which runs last: a run shows the figures of what is compared first."""
    return graph.nodes[name].notebook.front.baseline


@dataclass
class Execution:
    """The running part of a build."""

    executor: Executor
    fingerprints: Fingerprints
    """Also the project, its graph, and what cells that measure are to measure."""
    process_counts: Sequence[int]
    """In how many fresh processes each cell that measures is run, last; before it, other numbers whose known results are used."""
    cache: CellCache
    checkout: Checkout
    progress: Progress
    policy: CellPolicy
    """What cells may use."""
    retry_failed: bool = False
    """Whether cells that failed run again although nothing about them has changed."""
    measures: bool = True
    """Whether cells that measure run; otherwise others see their last results, or that they have none."""
    broken: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Notebooks with errors, of which no cell runs."""
    show: Callable[[], None] | None = None
    """Publishes the results so far; None if nothing is published."""
    expected: dict[CellName, float] = field(default_factory=dict, init=False)
    """The cells that may have to run, with the seconds that each is expected to take."""
    results: dict[CellName, Entry] = field(default_factory=dict)
    """The results so far."""
    standing: dict[CellName, Entry] = field(default_factory=dict, init=False)
    """What others see of cells that are not measured."""
    ran: set[CellName] = field(default_factory=set, init=False)
    """The cells whose results are new."""
    unfinished: dict[CellName, list[Path]] = field(default_factory=dict, init=False)
    """After an interruption: the artifacts of processes that had ended, of cells that have no result."""
    _keys: dict[CellName, str] = field(default_factory=dict, init=False)
    _rerun: set[CellName] = field(default_factory=set, init=False)
    _drafts: dict[CellName, Draft] = field(default_factory=dict, init=False)
    _prepared: dict[CellName, Prepared] = field(default_factory=dict, init=False)
    _running: dict[Future[StoredResult], CellName] = field(default_factory=dict, init=False)
    _running_sessions: dict[Future[None], Session] = field(default_factory=dict, init=False)
    _shown: int = field(default=0, init=False)
    """How many results were new when they were last published."""
    _next_show: float = field(default=0.0, init=False)
    """Not before this time."""

    @property
    def graph(self) -> Graph:
        return self.fingerprints.graph

    @property
    def seen(self) -> Mapping[CellName, Entry]:
        """What cells see of those that they need."""
        return ChainMap(self.results, self.standing)

    def run(self, cells: Sequence[CellName], rerun: set[CellName]) -> None:
        """Bring all cells to a result; run those of ``rerun`` in any case.

        After an interruption all processes have ended, and finished results are kept.
        """
        self._rerun = rerun
        stale = [name for name in cells if not self._settle_without_running(name)]
        device = self.executor.device
        nodes = [self.graph.nodes[name] for name in stale]
        nodes = [node for node in nodes if not unmet_requirement(node.notebook.front, device)]
        if self.executor.environment == "uv" and device.kind == "cpu":
            state = self.fingerprints.project.state
            if notice := torch_notice((node.cell for node in nodes), state, os.environ):
                self.progress.note(notice)
        self.expected = expected_seconds(nodes, self.cache.last, self.process_counts[-1])
        self.progress.build_started({str(name): seconds for name, seconds in self.expected.items()})
        measures = any(node.cell.measures for node in nodes)
        if not measures or sum(self.expected.values()) < LONG_SECONDS:
            self.show = None
        if self.show:
            self._summarize_committed(stale)
        try:
            with ThreadPoolExecutor(self.executor.jobs + self.executor.sessions) as pool:
                try:
                    self._show_results(pool)
                    # All environments, so that nothing is installed beside a measurement.
                    logs = {name: self._draft(name).environment_log for name in self.expected}
                    self._prepared = self.executor.prepare(nodes, logs, pool)
                    self._run_all(stale, pool)
                    self._refuse_changed()
                except BaseException:
                    self.executor.interrupt()
                    pool.shutdown(cancel_futures=True)
                    self._keep_finished()
                    raise
        finally:
            self.cache.discard_drafts()

    def _settle_without_running(self, name: CellName) -> bool:
        """Give a cell its known result, or that it cannot run; return whether it has a result now.

        A cell has none before the cells that it needs have one.
        """
        node = self.graph.nodes[name]
        if name.notebook in self.broken:
            self.standing[name] = self._without_result(name, Status.INVALID, self.broken[name.notebook][0])
            return True
        if any(need not in self.seen for need in node.needs):
            return False
        counts = self.process_counts[-1:] if name in self._rerun else self.process_counts
        known = None
        # Once is enough: the key stays the same, as the results of the needs do. It is kept, since files may be edited.
        for key in () if name in self._keys else self.fingerprints.keys(node, self.seen, counts):
            self._keys[name] = key
            known = self.cache.find(self._keys[name])
            if known and known.is_final(retry_failed=self.retry_failed):
                break
            known = None
        unmet = unmet_requirement(node.notebook.front, self.executor.device)
        if known and (unmet or name not in self._rerun):
            self._settle(name, known)
            return True
        if node.cell.measures and not self.measures and not unmet:
            self.standing[name] = self.cache.last(name) or self._without_result(
                name, Status.ABSENT, Status.ABSENT.meaning
            )
            return True
        prepared = self._prepared.get(name, Prepared())
        if not unmet and not prepared.reason:
            return False
        task = self._task(node, self._draft(name))
        if unmet:
            result = task.result(Status.UNSUPPORTED, Failure(type="Unsupported", msg=unmet))
        else:
            result = task.result_without_environment(prepared)
        self._commit(name, result)
        return True

    def _summarize_committed(self, stale: Sequence[CellName]) -> None:
        """Give cells that summarize committed records a first result without measuring, if they have none.

        How they fail does not count: they run again.
        """
        nodes = [self.graph.nodes[name] for name in stale if not self.cache.last(name)]
        first = [node.name for node in nodes if not node.cell.measures and any(map(is_committed, node.files))]
        without = replace(self, measures=False, show=None, progress=Progress(), results={})
        without.run(self.graph.closure(first), set())

    def _show_results(self, pool: ThreadPoolExecutor) -> None:
        """Publish the results so far, if there are new ones and it is not too soon."""
        new = len(self.ran) > self._shown or not self._next_show
        if self.show is None or not new or time.monotonic() < self._next_show:
            return
        self._shown = len(self.ran)
        began = time.monotonic()
        showing = pool.submit(self.show)  # an interruption must reach the main thread
        wait_for([showing])
        if error := showing.exception():  # the results count, and the last publication raises it
            self.progress.note(f"the report cannot be published yet: {type(error).__name__}: {error}")
        now = time.monotonic()
        self._next_show = now + max(SHOW_SECONDS, (now - began) / SHOW_SHARE)

    def _run_all(self, stale: Sequence[CellName], pool: ThreadPoolExecutor) -> None:
        # Those first that take the longest; baselines last, so that what is compared is seen first.
        order = sorted(stale, key=lambda name: (is_baseline(self.graph, name), -self.expected.get(name, 0.0)))
        place = {name: number for number, name in enumerate(order)}
        sorter = TopologicalSorter({name: place.keys() & self.graph.nodes[name].needs for name in order})
        sorter.prepare()
        ready: list[CellName] = []
        measuring: list[CellName] = []
        summaries: list[CellName] = []
        while True:
            ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
            while len(self._running) < self.executor.jobs and ready:
                name = ready.pop(0)
                node = self.graph.nodes[name]
                if self._settle_without_running(name):
                    sorter.done(name)
                    ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
                elif node.cell.measures:
                    measuring.append(name)
                elif any(self.graph.nodes[need].cell.measures for need in node.needs):
                    summaries.append(name)
                else:  # before sessions, so that their output is seen early
                    self._start(name, pool)
            # Where nothing runs beside a session, they wait for each other: one would leave the other cores idle.
            if self.executor.sessions or len(summaries) >= self.executor.jobs or not measuring:
                while summaries and len(self._running) < self.executor.jobs:
                    self._start(summaries.pop(0), pool)
            # It disturbs what is measured on processors, which may be those of this machine.
            beside = self.executor.sessions and self.executor.device.kind != "cpu"
            if beside or (measuring and not (self._running or self._running_sessions or summaries)):
                self._show_results(pool)
            measuring = self._start_sessions(sorted(measuring, key=place.__getitem__), pool)
            if not self._running and not self._running_sessions:
                return
            done = wait_for([*self._running, *self._running_sessions], first=True)
            for future in [future for future in self._running if future in done]:
                result = future.result()
                name = self._running.pop(future)
                self._commit(name, result)
                sorter.done(name)
            for session in [session for session in self._running_sessions if session in done]:
                session.result()
                for name in self._close(self._running_sessions.pop(session)):
                    sorter.done(name)

    def _refuse_changed(self) -> None:
        """Forget results that a cell of this build has changed."""
        for name in [*self.results] if self.ran else ():
            try:
                read_entry(self.results[name].folder)
            except DamagedEntryError as error:
                self._settle(name, self._without_result(name, Status.INVALID, str(error)))

    def _start(self, name: CellName, pool: ThreadPoolExecutor) -> None:
        self.progress.cell_started(str(name))
        task = self._task(self.graph.nodes[name], self._draft(name))
        self._running[pool.submit(self.executor.run, task)] = name

    def _group(self, name: CellName) -> str:
        """Return what the cells of one session share: their operator, or else their notebook."""
        return self.graph.nodes[name].notebook.operator or name.notebook

    def _start_sessions(self, ready: list[CellName], pool: ThreadPoolExecutor) -> list[CellName]:
        """Start as many sessions as the executor can run; return the cells that have to wait."""
        most, running = self.executor.sessions, self._running_sessions
        while len(running) < most or not (most or self._running or running):
            busy = {self._group(session.names[0]) for session in running.values()}
            group = next((group for group in map(self._group, ready) if group not in busy), None)
            if group is None:
                break
            # By name, not by duration: the order in a session is the same in every build.
            members = [name for name in ready if self._group(name) == group]
            names = sorted(members, key=lambda name: (is_baseline(self.graph, name), name))
            session = Session(
                nodes=[self.graph.nodes[name] for name in names],
                processes=self.process_counts[-1],
                device_kind=self.executor.device.kind,
                keys=self._keys,
                rerun=self._rerun,
                cache=self.cache,
                progress=self.progress,
                make_task=self._task,
                make_draft=self._draft,
            )
            running[pool.submit(self.executor.measure, session)] = session
            ready = [name for name in ready if self._group(name) != group]
        return ready

    def _close(self, session: Session) -> Sequence[CellName]:
        def store(name: CellName, result: StoredResult) -> None:
            self._commit(name, result)
            self.cache.drop_processes(self._keys[name])

        try:
            session.finish(store)
        finally:
            self.unfinished |= session.unfinished()
        return session.names

    def _keep_finished(self) -> None:
        """Commit what had ended when the build was interrupted, as far as there is space for it."""
        done = {future: name for future, name in self._running.items() if future.done()}
        good = [one for one in done if not one.cancelled() and one.exception() is None]
        keep: list[Callable[[], object]] = []
        keep += [partial(self._commit, done[future], future.result()) for future in good]
        keep += [partial(self._close, session) for session in self._running_sessions.values()]
        for one in keep:
            try:
                one()
            except (OSError, ProjectError) as error:
                self.progress.note(f"not everything that had finished could be kept: {error}")

    def _task(self, node: Node, draft: Draft, process: int = 0) -> CellTask:
        notebook, cell = node.notebook, node.cell
        context = CellContext(
            operator=notebook.operator,
            implementation=notebook.implementation,
            origin=Provenance(
                notebook=notebook.name,
                notebook_digest=notebook.digest,
                cell=cell.id,
                code_digest=cell.digest,
                commit=self.checkout.commit,
                dirty=self.checkout.dirty,
                environment=self.executor.environment,
                harness=harness_version() if cell.measures else "",
            ),
            request=self.fingerprints.request if cell.measures else USUAL_REQUEST,
            family=notebook.front.family,
            process=process,
            processes=self.process_counts[-1] if cell.measures else 1,
            operators=str(self.fingerprints.project.operators_folder) if cell.measures else "",
            sources=self.fingerprints.operator_sources if cell.measures else None,
        )
        return CellTask(
            node=node,
            graph=self.graph,
            context=context,
            device=self.executor.device,
            draft=draft,
            prepared=self._prepared.get(node.name, Prepared()),
            results=self.seen,
            policy=self.policy,
            on_output=lambda line: self.progress.cell_output(str(node.name), line),
            key=self._keys.get(node.name, ""),
            previous=self._previous(node),
            changed_input=lambda ran: self.fingerprints.changed_input(
                node, self._keys[node.name], self.seen, ran=ran
            ),
        )

    def _previous(self, node: Node) -> Entry | None:
        """Return the last result of a cell that summarizes, if it was made by the same code in the same environment."""
        entry = None if node.cell.measures or node.name in self._rerun else self.cache.last(node.name)
        with suppress(OSError):  # a cell of this build has removed an artifact, or has changed it
            if (
                entry
                and self.fingerprints.made_by_same_code(self._keys.get(node.name, ""), entry)
                and not entry.changed_artifact()
            ):
                return entry
        return None

    def _draft(self, name: CellName) -> Draft:
        if name not in self._drafts:
            self._drafts[name] = self.cache.draft()
        self._drafts[name].make()
        return self._drafts[name]

    def _without_result(self, name: CellName, status: Status, reason: str) -> Entry:
        return Entry(self.cache.folder / "none", StoredResult(cell=str(name), status=status, reason=reason))

    def _commit(self, name: CellName, result: StoredResult) -> None:
        result.parts = self.fingerprints.parts_of(self._keys[name])
        if self.graph.nodes[name].cell.measures:
            result.outcome = read_outcome(self._drafts[name].artifacts)
        entry = self.cache.commit(self._drafts.pop(name), self._keys[name], result)
        self.ran.add(name)
        self._settle(name, entry)

    def _settle(self, name: CellName, entry: Entry) -> None:
        self.results[name] = entry
        if self.measures or not entry.failed:
            self.cache.remember(name, entry)
        node, cached = self.graph.nodes[name], name not in self.ran
        expect = node.notebook.front.expect
        run = describe_cell(self.fingerprints.project, node.cell, entry, cached, expect)
        self.progress.cell_finished(str(name), run)


COMPILING_SECONDS, MEASURING_SECONDS, OTHER_SECONDS = 20.0, 4.0, 2.0
"""Of a process of a cell about which nothing is known, on two cores: it uses ``torch.compile``, imports torch, or draws charts."""


def expected_seconds(
    nodes: Sequence[Node], last: Callable[[CellName], Entry | None], processes: int
) -> dict[CellName, float]:
    """Return how long each cell is expected to take: as last time, else as others of its kind on two cores."""
    found = {}
    for node in nodes:
        entry, compiles = last(node.name), "torch.compile" in node.cell.code
        if entry and entry.result.exit_code is not None:
            found[node.name] = entry.result.seconds
        elif node.cell.measures:
            found[node.name] = processes * (COMPILING_SECONDS if compiles else MEASURING_SECONDS)
        else:
            found[node.name] = OTHER_SECONDS
    return found
