"""What workers of a cluster do for a build; these functions run there.

A job comes with what it needs by content, runs as a cell runs locally, and its files go back by content. It is
ended as soon as the scheduler takes it back: its build was interrupted, or is gone, or the worker closes.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributed import Status as WorkerStatus
from distributed import Worker, get_worker
from distributed import secede as leave_thread_pool

from kernels_bench_tools.cluster.file_store import Depot
from kernels_bench_tools.cluster.job import JobRun
from kernels_bench_tools.cluster.payload import (
    Busy,
    Job,
    Left,
    Missing,
    Recipe,
    harness_digest,
    runner_digest,
)
from kernels_bench_tools.cluster.worker_state import Desk, make_environment
from kernels_bench_tools.run.environment.base import Prepared, find_environment
from kernels_bench_tools.run.locks import device_lock
from kernels_bench_tools.run.process.reaper import reaper
from kernels_bench_tools.run.process.run import InterruptedBuildError, Processes
from kernels_bench_tools.run.progress import Silent
from kernels_bench_tools.schema.device import Device, current_device

_LOOK_SECONDS = 0.05
_LIVING = {WorkerStatus.running, WorkerStatus.paused, WorkerStatus.init, WorkerStatus.starting}

_RUNNER = runner_digest()
"""Of the code that this process runs, which an edit of its files does not change."""


@dataclass(frozen=True)
class Introduction:
    """What a build has to know about a worker."""

    device: Device
    identity: list[str]
    """What of its environment changes results."""
    runner: str
    """Digest of this package's code that runs cells, as the worker has loaded it."""
    harness: str
    """Digest of this package's code that cells import, as it is where the worker runs."""
    threads: int
    resources: dict[str, float]
    stored: set[str]
    """Digests of the contents that it has."""


_desks: dict[str, Desk] = {}
_desks_lock = threading.Lock()


def introduce(environment: str, dask_worker: Worker) -> Introduction:
    """Return what this worker is."""
    desk = _desk(dask_worker)
    desk.depot.prune()
    state = dask_worker.state
    return Introduction(
        device=current_device(),
        identity=find_environment(environment).identity(),
        runner=_RUNNER,
        harness=harness_digest(),
        threads=state.nthreads,
        resources=dict(state.total_resources),
        stored=desk.depot.stored(),
    )


def hold(session: str, topic: str) -> None:
    """Hold this worker and its device for a session until nobody wants it any more; tell ``topic`` once it is held."""
    worker, stopped = get_worker(), _stopped()
    leave_thread_pool()  # type: ignore[no-untyped-call]  # it keeps the resource, and not the thread
    try:
        with (
            _desk(worker).gate.held(session, stopped),
            device_lock(current_device().slug, Silent(), stopped),
        ):
            worker.log_event(topic, {"held": session, "worker": worker.address})
            while not stopped():
                time.sleep(_LOOK_SECONDS)
    except InterruptedBuildError:
        return


def deposit(contents: dict[str, bytes], dask_worker: Worker) -> None:
    """Keep contents, by their digests."""
    _desk(dask_worker).depot.store(contents)


def prepare(recipe: Recipe, topic: str) -> tuple[Prepared, bytes] | Missing:  # noqa: ARG001
    """Make the environment of a cell that will be measured here; return it, and what that printed."""
    desk = _desk(get_worker())
    if missing := desk.depot.missing(recipe.digests):
        return Missing(missing)
    with _ended_with_task() as processes:
        return make_environment(desk, recipe, find_environment(recipe.environment), processes)


def execute(job: Job, topic: str) -> Left | Missing | Busy:
    """Run one process of a cell, and return what it left; what it prints is told to ``topic``."""
    worker = get_worker()
    desk = _desk(worker)
    if missing := desk.depot.missing(job.digests):
        return Missing(missing)

    def tell(lines: list[str]) -> None:
        worker.log_event(topic, {"cell": job.name, "lines": lines})

    with (
        desk.gate.entered(job.session) as allowed,
        _ended_with_task() as processes,
        tempfile.TemporaryDirectory(dir=reaper().folder, ignore_cleanup_errors=True) as folder,
    ):
        if not allowed:
            return Busy()
        left = JobRun(desk, job, Path(folder).resolve(), processes, tell).run()
    desk.depot.store(
        {digest: left.files[f"artifacts/{name}"] for name, digest in left.result.artifacts.items()}
    )
    return left


def _desk(worker: Worker) -> Desk:
    with _desks_lock:
        if worker.id not in _desks:
            _desks[worker.id] = Desk(Depot(Path(worker.local_directory) / "kbt"))
        return _desks[worker.id]


@contextmanager
def _ended_with_task() -> Iterator[Processes]:
    """Yield processes that are ended as soon as the task that this is called in is taken back."""
    processes, stopped, over = Processes(), _stopped(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            if stopped():
                processes.interrupt()
                return

    thread = threading.Thread(target=watch, name="kbt-watch", daemon=True)
    thread.start()
    try:
        yield processes
    finally:
        over.set()
        thread.join()


def _stopped() -> Callable[[], bool]:
    """Return what tells whether the task that this is called in was taken back, or its worker closes."""
    worker = get_worker()
    key = worker.get_current_task()

    def stopped() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled" or worker.status not in _LIVING

    return stopped
