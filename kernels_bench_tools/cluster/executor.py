"""Runs the cells of a build on the workers of a Dask scheduler; results go into this project's cache.

The scheduler decides where cells run. A session takes all of a worker's resource ``device``, and a cell that does not
measure takes a share, so that nothing runs beside a measurement, of this build or another. When a worker is lost, the
scheduler starts its cells again elsewhere, as often as its setting ``allowed-failures`` says.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any

import dask
from distributed import Client
from distributed.scheduler import KilledWorker

from kernels_bench_tools.cluster.shipment import (
    CODE,
    DEVICE,
    Shipment,
    WorkerInfo,
    describe_worker,
    pack,
    run_shipment,
    unpack,
)
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.records.record import Failure, Status
from kernels_bench_tools.run.cache.store import RESULT, StoredResult
from kernels_bench_tools.run.cell import CellTask
from kernels_bench_tools.run.environment.base import Prepared
from kernels_bench_tools.run.process.run import InterruptedBuildError
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import Session

CONNECT_SECONDS, ARRIVAL_SECONDS = 5, 10
"""How long a scheduler may take to answer, and how long a build waits for the first worker."""
_POLL_SECONDS = 0.05


@dataclass
class _Attempt:
    group: str
    worker: str = ""
    """The worker that it runs on; empty before it has started."""
    cell: str = ""
    """The cell that started last; empty before one has."""


class ClusterExecutor:
    """The workers of the Dask scheduler at ``address``, such as ``tcp://host:8786``."""

    def __init__(self, address: str, project: Project, environment: str, progress: Progress) -> None:
        self._where = f"cluster {address}"
        self._project, self.environment, self._progress = project, environment, progress
        self._topic = f"kbt-{uuid.uuid4().hex}"
        self._stopped = threading.Event()
        self._attempts: dict[str, _Attempt] = {}
        self._used: dict[str, str] = {}
        """By operator, the worker that measured it last: the numbers of a table come from one device."""
        self._client = _connect(address)
        try:
            self._client.subscribe_topic(self._topic, lambda event: self._on_step(event[1]))
            workers = self._describe_workers()
        except BaseException:
            self.close()
            raise
        self._worker = workers[0]
        self.device, self.identity = self._worker.device, self._worker.identity
        # A power of two, since the scheduler adds and subtracts shares.
        self._slots = 1 << (min(info.threads for info in workers).bit_length() - 1)
        self.jobs, self.sessions = self._slots * len(workers), len(workers)

    def _describe_workers(self) -> list[WorkerInfo]:
        try:
            self._client.wait_for_workers(1, timeout=ARRIVAL_SECONDS)
            answers = self._client.run(describe_worker, self.environment, on_error="return")
        except TimeoutError:
            hint = f"Start some with `dask worker`, with `--resources {DEVICE}=1`"
            raise ProjectError(self._where, "has a scheduler, but no workers", "", hint) from None
        infos = list(answers.values())
        for worker, info in answers.items():
            if isinstance(info, Exception):
                what = f"cannot run cells ({type(info).__name__}: {info})"
                hint = "Start it with this version of kernels-bench-tools"
                raise ProjectError(f"worker {worker}", what, "", hint)
            # What a worker returns is stored under this process's key.
            info.check(replace(infos[0], code=CODE), f"worker {worker}")
        return infos

    def prepare(self, *_: object, **__: object) -> dict[CellName, Prepared]:
        """Do nothing: a worker makes the environments of the cells that it runs."""
        return {}

    def run(self, task: CellTask) -> StoredResult:
        return self._run([task], group="")[task.node.name]

    def measure(self, session: Session) -> None:
        tasks = [session.make_task(node, session.make_draft(node.name), 0) for node in session.nodes]
        session.results |= self._run(tasks, session.group)

    def interrupt(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Disconnect from the scheduler, which releases what still runs for this build."""
        self._client.close(timeout=2)

    def _run(self, tasks: Sequence[CellTask], group: str) -> dict[CellName, StoredResult]:
        """Run the cells of a session, or one that does not measure, on one worker; without those that crash workers."""
        waiting = {str(task.node.name): task for task in tasks}
        results: dict[CellName, StoredResult] = {}
        while waiting:
            shipment = pack(self._project, self.environment, list(waiting.values()), self._worker)
            changes = {
                name: change for name, task in waiting.items() if (change := task.changed_input(False))
            }
            for name, change in changes.items():
                task = waiting.pop(name)
                results[task.node.name] = task.outdated_result(f"{change} since this build began")
            if changes:
                continue
            attempt = self._attempts[shipment.attempt] = _Attempt(group)
            try:
                entries = self._submit(attempt, shipment)
                for name, entry in entries.items():
                    task = waiting.pop(name)
                    unpack(entry, task.draft.folder)
                    results[task.node.name] = read_struct(task.draft.folder / RESULT, StoredResult)
            except InterruptedBuildError:  # the worker was closed or lost: again, on another one
                self._check()
            except KilledWorker:
                self._check()
                if attempt.cell not in waiting:
                    where = f"worker {attempt.worker or self._where}"
                    raise ProjectError(where, "was lost repeatedly before a cell ran") from None
                task = waiting.pop(attempt.cell)
                failure = Failure(type="WorkerLost", msg="its worker was lost each time it ran")
                results[task.node.name] = task.result(Status.CRASHED, failure, transient=True)
            finally:
                del self._attempts[shipment.attempt]
        return results

    def _submit(self, attempt: _Attempt, shipment: Shipment) -> dict[str, bytes]:
        """Run cells on a worker, and return their results and files."""
        used = self._used.get(attempt.group, "")
        used = used if self._is_there(used) else ""
        future = self._client.submit(
            run_shipment,
            shipment,
            self._topic,
            workers=[used] if used else None,
            resources={DEVICE: 1.0 if attempt.group else 1.0 / self._slots},
            priority=1 if attempt.group else 0,
            key=f"kbt-{'session' if attempt.group else 'cell'}-{shipment.attempt}",
            pure=False,
        )
        try:
            while not future.done():
                self._check()
                if used and not self._is_there(used):
                    raise InterruptedBuildError
                time.sleep(_POLL_SECONDS)
            entries: dict[str, bytes] = future.result()
            return entries
        except CancelledError:
            self._check()
            raise self._scheduler_gone() from None
        finally:
            if not future.done() and self._client.status == "running":
                future.cancel()
            future.release()

    def _is_there(self, worker: str) -> bool:
        try:
            return bool(worker) and worker in self._client.nthreads()
        except (OSError, RuntimeError):
            raise self._scheduler_gone() from None

    def _check(self) -> None:
        if self._stopped.is_set():
            raise InterruptedBuildError
        if self._client.status != "running":
            raise self._scheduler_gone()

    def _scheduler_gone(self) -> ProjectError:
        what = "the scheduler is gone; finished results are kept"
        return ProjectError(self._where, what, "", "Start it again, and then the same build")

    def _on_step(self, event: dict[str, Any]) -> None:
        """Report a step of an attempt; called in a thread that must not block."""
        running, worker, step = self._attempts.get(event["attempt"]), event["worker"], event["step"]
        if running is None:  # it was given up
            return
        if step == "assigned":
            if running.worker:
                during = f" while {running.cell} ran" if running.cell else ""
                self._progress.note(f"worker {running.worker} was lost{during}; trying again on {worker}")
            running.worker = worker
            if running.group:
                self._used[running.group] = worker
        elif worker == running.worker:  # else of one that is lost
            if step in {"cell_started", "process_started"}:
                running.cell = event["arguments"][0]
            if step not in {"build_started", "cell_started"}:  # the build itself has reported these
                getattr(self._progress, step)(*event["arguments"])


class _Client(Client):
    def __del__(self) -> None:
        """Do nothing: one that never connected would wait for 10 s and print a traceback."""


def _connect(address: str) -> Any:
    # Dask logs a lost connection many times; it is reported once, as an error.
    for name in ("distributed", "distributed.client"):  # Dask sets the level of each
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    make: Any = _Client  # Dask's functions have no types
    try:
        return make(address, timeout=CONNECT_SECONDS, set_as_default=False, name="kbt")
    except Exception as error:
        host = address.rpartition("://")[2]  # which Dask repeats, also with a password
        said = str(error).replace(host, host.rpartition("@")[2]).splitlines() or [type(error).__name__]
        raise ProjectError(
            f"cluster {address}",
            f"no scheduler answers ({said[0].rstrip('.')})",
            "the address of a Dask scheduler, such as tcp://host:8786",
            "`dask scheduler` starts one and prints its address; CONTRIBUTING.md shows how",
        ) from None
