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
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median
from typing import Any

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.git import Checkout
from kernels_bench_tools.notebooks.front_matter import unmet_requirement
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.project import CellPolicy
from kernels_bench_tools.records.code import harness_version
from kernels_bench_tools.records.committed import is_committed
from kernels_bench_tools.records.record import Failure, Provenance, Status
from kernels_bench_tools.records.request import USUAL_REQUEST, CellContext
from kernels_bench_tools.run.cache.key import CacheKey, Fingerprints
from kernels_bench_tools.run.cache.store import CellCache, Draft, Entry, StoredResult
from kernels_bench_tools.run.cell import CellTask, describe_cell
from kernels_bench_tools.run.cell_outputs import read_outcome
from kernels_bench_tools.run.environment.base import Prepared, torch_notice
from kernels_bench_tools.run.executor import Executor
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.process.run import wait_for
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import Session
from kernels_bench_tools.text.tables import grouped

LONG_SECONDS = 15.0
"""Results of a build that is expected to take at least this long are published while it runs."""
SHOW_SECONDS = 5.0
"""The shortest time between two publications."""
SHOW_SHARE = 0.05
"""The largest share of a build's time that they take."""


@dataclass
class Publication:
    """Publishes the results of a long build while it runs."""

    show: Callable[[], None] | None = None
    """None if nothing is published."""
    _shown: int = -1
    """How many results were new when they were last published."""
    _next: float = 0.0
    """Not before this time."""

    def publish(self, new: int, pool: ThreadPoolExecutor, note: Callable[[str], None]) -> None:
        """Publish the results if more of them are ``new``, and it is not too soon."""
        began = time.monotonic()
        if self.show is None or new <= self._shown or began < self._next:
            return
        self._shown = new
        showing = pool.submit(self.show)  # an interruption must reach the main thread
        wait_for([showing])
        if error := showing.exception():  # the results count, and the last publication raises it
            note(f"the report cannot be published yet: {type(error).__name__}: {error}")
        now = time.monotonic()
        self._next = now + max(SHOW_SECONDS, (now - began) / SHOW_SHARE)


@dataclass
class Results:
    """What is known of the cells of a build so far."""

    settled: dict[CellName, Entry] = field(default_factory=dict)
    """Results of this build, or that it has found."""
    standing: dict[CellName, Entry] = field(default_factory=dict)
    """What others see of cells that are not run."""
    new: set[CellName] = field(default_factory=set)
    """The cells that this build has run."""
    unfinished: dict[CellName, list[Path]] = field(default_factory=dict)
    """After an interruption: the artifacts of processes that had ended, of cells that have no result."""

    @property
    def seen(self) -> Mapping[CellName, Entry]:
        """What cells see of those that they need."""
        return ChainMap(self.settled, self.standing)


@dataclass
class Execution:
    """The running part of a build."""

    executor: Executor
    fingerprints: Fingerprints
    """Also the project, its graph, and what cells that measure are to measure."""
    cache: CellCache
    checkout: Checkout
    progress: Progress
    options: BuildOptions
    policy: CellPolicy
    """What cells may use."""
    results: Results = field(default_factory=Results)
    broken: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Notebooks with errors, of which no cell runs."""
    publication: Publication = field(default_factory=Publication)
    _keys: dict[CellName, CacheKey] = field(default_factory=dict, init=False)
    _rerun: set[CellName] = field(default_factory=set, init=False)
    _drafts: dict[CellName, Draft] = field(default_factory=dict, init=False)
    _prepared: dict[CellName, Prepared] = field(default_factory=dict, init=False)
    _running: dict[Future[StoredResult], CellName] = field(default_factory=dict, init=False)
    _running_sessions: dict[Future[None], Session] = field(default_factory=dict, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)
    _paces: list[float] = field(default_factory=list, init=False)
    """Of each planned operator that was measured: its seconds, relative to what was expected."""

    @property
    def graph(self) -> Graph:
        return self.fingerprints.graph

    @property
    def _process_counts(self) -> list[int]:
        return self.options.process_counts(self.executor.device.kind)

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
        expected = expected_seconds(nodes, self.cache.last, self._process_counts[-1], self.options.planned)
        at_once = max(1, self.executor.sessions)
        self.progress.build_started({str(name): seconds / at_once for name, seconds in expected.items()})
        measures = any(node.cell.measures for node in nodes)
        if not measures or sum(expected.values()) < LONG_SECONDS:
            self.publication.show = None
        if self.publication.show:
            self._summarize_committed(stale)
        try:
            with ThreadPoolExecutor(self.executor.jobs + self.executor.sessions) as pool:
                try:
                    self.publication.publish(len(self.results.new), pool, self.progress.note)
                    # All environments, so that nothing is installed beside a measurement.
                    logs = {name: self._draft(name).environment_log for name in expected}
                    self._prepared = self.executor.prepare(nodes, logs, pool)
                    self._run_all(stale, expected, pool)
                    self._refuse_changed()
                except BaseException:
                    self.executor.interrupt()
                    pool.shutdown(cancel_futures=True)
                    self._keep_finished()
                    self._refuse_changed()
                    raise
        finally:
            self.cache.discard_drafts()

    def _settle_without_running(self, name: CellName) -> bool:
        """Give a cell its known result, or that it cannot run; return whether it has a result now.

        A cell has none before the cells that it needs have one.
        """
        node, seen = self.graph.nodes[name], self.results.seen
        if name.notebook in self.broken:
            problem = self.broken[name.notebook][0]
            self.results.standing[name] = self._without_result(name, Status.INVALID, problem)
            return True
        if any(need not in seen for need in node.needs):
            return False
        known = None
        # Once is enough: the key stays the same, as the results of the needs do. It is kept, since files may be edited.
        if name not in self._keys:
            counts = self._process_counts[-1:] if name in self._rerun else self._process_counts
            for key in self.fingerprints.keys(node, seen, counts):
                self._keys[name], known = key, self.cache.find(key.digest)
                if known and known.is_final(retry_failed=self.options.retry_failed):
                    break
                known = None
        unmet = unmet_requirement(node.notebook.front, self.executor.device)
        if known and (unmet or name not in self._rerun):
            self._settle(name, known)
            return True
        planned = self.options.planned
        measured = self.options.measure and (planned is None or _group(node) in planned)
        if node.cell.measures and not measured and not unmet:
            self._leave(name)
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

    def _leave(self, name: CellName) -> None:
        """Let others see the last result of a cell that is not run."""
        absent = self._without_result(name, Status.ABSENT, Status.ABSENT.meaning)
        self.results.standing[name] = self.cache.last(name) or absent

    def _summarize_committed(self, stale: Sequence[CellName]) -> None:
        """Give cells that summarize committed records a first result without measuring, if they have none.

        How they fail does not count: they run again.
        """
        nodes = [self.graph.nodes[name] for name in stale if not self.cache.last(name)]
        first = [node.name for node in nodes if not node.cell.measures and any(map(is_committed, node.files))]
        without = replace(
            self,
            options=replace(self.options, measure=False),
            progress=Progress(),
            publication=Publication(),
            results=Results(),
        )
        without.run(self.graph.closure(first), set())

    def _run_all(
        self, stale: Sequence[CellName], expected: Mapping[CellName, float], pool: ThreadPoolExecutor
    ) -> None:
        """Run cells, and settle those that need not run once their needs have; ``expected`` is how long each takes."""
        nodes, jobs = self.graph.nodes, self.executor.jobs
        # Those first that take the longest; baselines last, so that what is compared is seen first.
        order = sorted(
            stale, key=lambda name: (nodes[name].notebook.front.baseline, -expected.get(name, 0.0))
        )
        place = {name: number for number, name in enumerate(order)}
        sorter = TopologicalSorter({name: place.keys() & nodes[name].needs for name in order})
        sorter.prepare()
        ready: list[CellName] = []
        measuring: list[CellName] = []
        summaries: list[CellName] = []
        while True:
            ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
            while len(self._running) < jobs and ready:
                name = ready.pop(0)
                if self._settle_without_running(name):
                    sorter.done(name)
                    ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
                elif nodes[name].cell.measures:
                    measuring.append(name)
                elif any(nodes[need].cell.measures for need in nodes[name].needs):
                    summaries.append(name)
                else:  # before sessions, so that their output is seen early
                    self._start(name, pool)
            # Where nothing runs beside a session, they wait for each other: one would leave the other cores idle.
            if self.executor.sessions or len(summaries) >= jobs or not measuring:
                while summaries and len(self._running) < jobs:
                    self._start(summaries.pop(0), pool)
            # It disturbs what is measured on processors, which may be those of this machine.
            beside = self.executor.sessions and self.executor.device.kind != "cpu"
            if beside or (measuring and not (self._running or self._running_sessions or summaries)):
                self.publication.publish(len(self.results.new), pool, self.progress.note)
            late = [name for name in measuring if not self._has_time(nodes[name])]
            for name in late:
                self._leave(name)
            sorter.done(*late)
            waiting = [name for name in measuring if name not in late]
            measuring = self._start_sessions(sorted(waiting, key=place.__getitem__), pool)
            if not self._running and not self._running_sessions:
                if late:  # what needs them is ready now
                    continue
                return
            running: list[Future[Any]] = [*self._running, *self._running_sessions]
            done = wait_for(running, first=True)
            for future in [future for future in running if future in done]:
                if future in self._running:
                    name = self._running.pop(future)
                    self._commit(name, future.result())
                    sorter.done(name)
                else:
                    future.result()
                    sorter.done(*self._close(self._running_sessions.pop(future)))

    def _refuse_changed(self) -> None:
        """Remove results that a cell of this build has changed."""
        changed = self.cache.drop_changed() if self.results.new else {}
        for name, entry in [*self.results.settled.items()]:
            if why := changed.get(entry.key):
                self._settle(name, self._without_result(name, Status.INVALID, why))

    def _start(self, name: CellName, pool: ThreadPoolExecutor) -> None:
        self.progress.cell_started(str(name))
        task = self._task(self.graph.nodes[name], self._draft(name))
        self._running[pool.submit(self.executor.run, task)] = name

    def _start_sessions(self, ready: list[CellName], pool: ThreadPoolExecutor) -> list[CellName]:
        """Start as many sessions as the executor can run; return the cells that have to wait."""
        most, running = self.executor.sessions, self._running_sessions
        while len(running) < most or not (most or self._running or running):
            busy = {session.group for session in running.values()}
            nodes = [self.graph.nodes[name] for name in ready]
            groups = grouped((_group(node), node) for node in nodes)
            group = next(
                (
                    group
                    for group in [*(self.options.planned or ()), *groups]
                    if group in groups.keys() - busy
                ),
                None,
            )
            if group is None:
                break
            # By name, not by duration: the order in a session is the same in every build.
            members = sorted(groups[group], key=lambda node: (node.notebook.front.baseline, node.name))
            session = Session(
                group=group,
                nodes=members,
                processes=self._process_counts[-1],
                device_kind=self.executor.device.kind,
                keys=self._keys,
                rerun=self._rerun,
                cache=self.cache,
                progress=self.progress,
                make_task=self._task,
                make_draft=self._draft,
            )
            running[pool.submit(self.executor.measure, session)] = session
            ready = [name for name in ready if name not in session.names]
        return ready

    def _has_time(self, node: Node) -> bool:
        """Return whether an operator is expected to be finished in time, if it is as fast as those before it."""
        expected = (self.options.planned or {}).get(_group(node), 0.0) * (
            median(self._paces) if self._paces else 1.0
        )
        return time.monotonic() + expected <= self._began + self.options.seconds

    def _close(self, session: Session) -> Sequence[CellName]:
        def store(name: CellName, result: StoredResult) -> None:
            self._commit(name, result)
            self.cache.drop_processes(self._keys[name].digest)

        try:
            session.finish(store)
        finally:
            self.results.unfinished |= session.unfinished()
        if expected := (self.options.planned or {}).get(session.group):
            self._paces.append((time.monotonic() - session.began) / expected)
        return session.names

    def _keep_finished(self) -> None:
        """Commit what had ended when the build was interrupted, as far as there is space for it."""
        keep: list[Callable[[], object]] = []
        for future, name in self._running.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                keep.append(partial(self._commit, name, future.result()))
        keep += [partial(self._close, session) for session in self._running_sessions.values()]
        for keep_results in keep:
            try:
                keep_results()
            except (OSError, ProjectError) as error:
                self.progress.note(f"some finished results could not be stored: {error}")

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
            processes=self._process_counts[-1] if cell.measures else 1,
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
            results=self.results.seen,
            policy=self.policy,
            on_output=lambda line: self.progress.cell_output(str(node.name), line),
            key=self._keys[node.name].digest,
            previous=self._previous(node),
            changed_input=lambda ran: self.fingerprints.changed_input(
                node, self._keys[node.name], self.results.seen, ran=ran
            ),
        )

    def _previous(self, node: Node) -> Entry | None:
        """Return the last result of a cell that summarizes, if it was made by the same code in the same environment."""
        entry = None if node.cell.measures or node.name in self._rerun else self.cache.last(node.name)
        with suppress(OSError):  # a cell of this build has removed an artifact, or has changed it
            if entry and self._keys[node.name].has_same_code(entry) and not entry.changed_artifact():
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
        digest, result.parts = self._keys[name]
        if self.graph.nodes[name].cell.measures:
            result.outcome = read_outcome(self._drafts[name].artifacts)
        entry = self.cache.commit(self._drafts.pop(name), digest, result)
        self.results.new.add(name)
        self._settle(name, entry)

    def _settle(self, name: CellName, entry: Entry) -> None:
        self.results.settled[name] = entry
        if self.options.measure or not entry.failed:
            self.cache.remember(name, entry)
        node, cached = self.graph.nodes[name], name not in self.results.new
        expect = node.notebook.front.expect
        run = describe_cell(self.fingerprints.project, node.cell, entry, cached, expect)
        self.progress.cell_finished(str(name), run)


def _group(node: Node) -> str:
    """Return what is measured in one session with a cell: the cells of its operator, or else of its notebook."""
    return node.notebook.operator or node.name.notebook


COMPILING_SECONDS, MEASURING_SECONDS, OTHER_SECONDS = 20.0, 4.0, 2.0
"""Of a process of a cell about which nothing is known, on two cores: it uses ``torch.compile``, imports torch, or draws charts."""


def expected_seconds(
    nodes: Sequence[Node],
    last: Callable[[CellName], Entry | None],
    processes: int,
    planned: Mapping[str, float] | None = None,
) -> dict[CellName, float]:
    """Return how long each cell is expected to take: as planned, or last time, else as others of its kind on two cores."""
    expected = {}
    measuring = Counter(_group(node) for node in nodes if node.cell.measures)
    for node in nodes:
        entry, compiles = last(node.name), "torch.compile" in node.cell.code
        if node.cell.measures and planned:
            expected[node.name] = planned.get(_group(node), 0.0) / measuring[_group(node)]
        elif entry and entry.result.exit_code is not None:
            expected[node.name] = entry.result.seconds
        elif node.cell.measures:
            expected[node.name] = processes * (COMPILING_SECONDS if compiles else MEASURING_SECONDS)
        else:
            expected[node.name] = OTHER_SECONDS
    return expected
