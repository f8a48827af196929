"""A Dask cluster as a workplace: cells run on its workers, and results come home into this project's cache.

Where a job runs is decided here, so that nothing is sent beside a measurement; which worker holds its device
for a session is decided by the scheduler, which knows of other builds. Workers keep to it on their side too.
"""

from __future__ import annotations

import os
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_bench_tools.cluster import worker as remote
from kernels_bench_tools.cluster.connection import Connection
from kernels_bench_tools.cluster.packing import Packer
from kernels_bench_tools.cluster.payload import Busy, Job, Left, Missing, Recipe
from kernels_bench_tools.cluster.slots import NoPlacesError, Place
from kernels_bench_tools.cluster.workers import DEVICE, Staff, WorkersEnvironment
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.store import StoredResult
from kernels_bench_tools.run.cell import finish
from kernels_bench_tools.run.environment.base import CellEnvironment, Prepared, find_environment
from kernels_bench_tools.run.executor import Bench, Errand, LostPlaceError
from kernels_bench_tools.run.process.run import never
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import LIVES, lost_failure
from kernels_bench_tools.schema.record import Status

_CHUNK = 16 * 2**20
"""Bytes that are sent in one message at most, a larger file aside."""
_WAIT_SECONDS = 0.2


class Cluster:
    """The workers of a Dask scheduler.

    Args:
        project: The project.
        address: The scheduler's, such as ``tcp://host:8786``.
        environment: ``"uv"`` or ``"current"``, on the workers.
        progress: Told of what a user would want to know.

    Raises:
        ProjectError: No scheduler answers, or its workers cannot run this build's cells.
    """

    apart = True

    def __init__(self, project: Project, address: str, environment: str, progress: Progress) -> None:
        build = uuid.uuid4().hex
        self._progress = progress
        self._sessions: dict[str, queue.SimpleQueue[str]] = {}
        self._outputs: dict[str, Callable[[str], None]] = {}
        self._logs: Mapping[CellName, Path] = {}
        self._choosing = threading.Lock()
        self._used: dict[str, str] = {}
        """By operator, the worker that measured it last: the numbers of a table come from one device."""
        self._connection = Connection(address, f"kbt-{build}", self._told)
        try:
            staff = Staff(self._connection, environment, progress)
        except BaseException:
            self._connection.close()
            raise
        self._places = staff.places
        self.device = staff.first.device
        self.environment: CellEnvironment = WorkersEnvironment(
            find_environment(environment), staff.first.identity
        )
        self.jobs = max(1, self._places.threads)
        self.sessions = max(1, len(self._places.with_device()))
        self._packer = Packer(project, self.environment, build)

    def prepare(
        self,
        nodes: Sequence[Node],
        logs: Mapping[CellName, Path],
        pool: ThreadPoolExecutor,  # noqa: ARG002
    ) -> dict[CellName, Prepared]:
        """Leave it to the workers: only those that run a cell need its environment."""
        self._logs = logs
        return {node.name: Prepared() for node in nodes}

    @contextmanager
    def measuring(self, nodes: Sequence[Node]) -> Iterator[Bench]:
        """Hold the device of a worker, and make the environments there before anything is measured."""
        group = nodes[0].notebook.operator or nodes[0].name.notebook
        session = uuid.uuid4().hex
        with ExitStack() as stack:
            with self._choosing:  # who chooses next sees which worker is taken
                future, address = self._hold(session, self._used.get(group, ""))
                stack.callback(self._connection.take_back, future)
                place = self._places.get(address)
                if place is None:
                    raise LostPlaceError(f"worker {address}")
                stack.enter_context(self._places.held(place))
            self._used[group] = address
            for node in nodes:
                self.prepare_on(place, node)
            yield _HeldWorker(self, place, session)

    def run(self, errand: Errand) -> StoredResult:
        """Run a cell that does not measure.

        One whose worker is lost runs elsewhere; alone, so that it is known whose fault it was.
        """
        lost = 0
        while True:
            try:
                with self._places.taken(alone=lost > 0) as place:
                    answer = self.execute(place, errand, "")
                    if isinstance(answer, Busy):
                        self._places.shun(place)
                        continue
                return _unpack(errand, answer)
            except NoPlacesError:
                raise self._deserted() from None
            except LostPlaceError as error:
                if error.cell is None:
                    continue
                lost += 1
                where = "not tried again" if lost == LIVES else "tried elsewhere"
                self._progress.note(
                    f"{error.place} was lost while {error.cell} ran; {where} ({lost} of {LIVES})"
                )
                if lost == LIVES:
                    return finish(errand.task, Status.CRASHED, lost_failure(LIVES))

    def interrupt(self) -> None:
        """Have every worker end what it does for this build."""
        self._connection.stopped.set()

    def close(self) -> None:
        """Let go of the cluster, which goes on without this build."""
        self._connection.close()

    def execute(self, place: Place, errand: Errand, session: str) -> Left | Busy:
        """Run a job on a worker, with what it lacks sent before; whatever it prints is told."""
        job = self._packer.job(errand, session)
        self._outputs[job.name] = errand.output
        try:
            answer: Left | Busy = self._send(place, errand.node.name, job, remote.execute, errand.cancelled)
            return answer
        finally:
            self._outputs.pop(job.name, None)

    def prepare_on(self, place: Place, node: Node) -> None:
        """Make a cell's environment on a worker; one that cannot be made says so when the cell is run."""
        self._progress.environment_started(str(node.name))
        prepared, log = self._send(place, node.name, self._packer.recipe(node), remote.prepare)
        self._logs[node.name].write_bytes(log)
        self._progress.environment_finished(str(node.name), prepared.seconds, not prepared.reason)

    def _send(
        self,
        place: Place,
        cell: CellName,
        thing: Job | Recipe,
        function: Callable[..., Any],
        cancelled: Callable[[], bool] = never,
    ) -> Any:
        missing = thing.digests - place.known
        while True:
            self._deposit(place, missing)
            topic = self._connection.topic
            answer = self._connection.call(
                function, thing, topic, worker=place.address, cell=cell, cancelled=cancelled
            )
            if not isinstance(answer, Missing):
                return answer
            missing = answer.digests

    def _deposit(self, place: Place, digests: set[str]) -> None:
        """Send contents to a worker's store, in messages of a bounded size."""
        waiting = sorted(digests)
        while waiting:
            contents: dict[str, bytes] = {}
            while waiting and sum(map(len, contents.values())) < _CHUNK:
                digest = waiting.pop()
                contents[digest] = self._packer.content(digest)
            answer = self._connection.ask(remote.deposit, contents, workers=[place.address])[place.address]
            if isinstance(answer, Exception):
                self._connection.check()
                if isinstance(answer, OSError) and place.address not in self._connection.gone:
                    raise ProjectError(f"worker {place.address}", f"cannot keep what it is sent ({answer})")
                raise LostPlaceError(f"worker {place.address}")
        place.known |= digests

    def _hold(self, session: str, preferred: str) -> tuple[Any, str]:
        """Ask the scheduler for a worker whose device is free; return the future that holds it, and its address."""
        held = self._sessions[session] = queue.SimpleQueue()
        try:
            places = self._places.wait_for_device()
        except NoPlacesError:
            raise self._deserted() from None
        # The scheduler may queue a session behind another one, though a worker beside it has nothing to do.
        candidates = [one.address for one in places if not one.held] or [one.address for one in places]
        workers = [preferred] if preferred in {one.address for one in places} else candidates
        future = self._connection.submit(
            remote.hold, session, self._connection.topic, workers=workers, resources={DEVICE: 1}
        )
        try:
            while True:
                try:
                    return future, held.get(timeout=_WAIT_SECONDS)
                except queue.Empty:
                    self._connection.check()
                    if set(workers) <= self._connection.gone:
                        raise LostPlaceError(f"worker {workers[0]}") from None
                    if future.done():
                        future.result()
                        raise LostPlaceError("a worker") from None
        except BaseException:
            self._connection.take_back(future)
            raise

    def _told(self, message: dict[str, Any]) -> None:
        """Hear what a worker says; in a thread that must not wait."""
        if session := message.get("held"):
            self._sessions[session].put(message["worker"])
        elif output := self._outputs.get(message.get("cell", "")):
            for line in message["lines"]:
                output(line)

    def _deserted(self) -> ProjectError:
        where = f"cluster {self._connection.address}"
        what = "has no worker left that could go on; what was finished is kept"
        return ProjectError(where, what, "", "Start workers again (`kbt workers`), and then the same build")


@dataclass(frozen=True)
class _HeldWorker:
    """A worker that is held for a session."""

    cluster: Cluster
    place: Place
    session: str

    def run(self, errand: Errand) -> StoredResult:
        """Run one process of a cell that measures."""
        answer = self.cluster.execute(self.place, errand, self.session)
        if isinstance(answer, Busy):  # it holds no session any more, or another one
            raise LostPlaceError(f"worker {self.place.address}")
        return _unpack(errand, answer)


def _unpack(errand: Errand, left: Left) -> StoredResult:
    """Put what a worker returned into the cell's draft."""
    folder = errand.task.draft.folder
    for name, data in left.files.items():
        path = folder / name
        if not Path(os.path.normpath(path)).is_relative_to(folder):
            raise ProjectError(name, "is no name of a file within a cell's results")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return left.result
