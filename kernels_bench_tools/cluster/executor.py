"""Runs the cells of a build on the workers of a Dask scheduler; results go into this project's cache.

The scheduler decides where cells run. A session takes all of a worker's resource ``device``, and a cell that does not
measure takes a share, so that nothing runs beside a measurement, of this build or another.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Client
from distributed.scheduler import KilledWorker

from kernels_bench_tools.cluster.shipment import (
    CODE,
    DEVICE,
    PackedEntry,
    Shipment,
    WorkerInfo,
    describe_worker,
    pack,
    run_shipment,
    write_files,
)
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.records.record import Failure, Status
from kernels_bench_tools.run.cache.entry import StoredResult
from kernels_bench_tools.run.cell import CellTask, finish, outdated
from kernels_bench_tools.run.environment.base import Prepared
from kernels_bench_tools.run.process.run import InterruptedBuildError
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import Session

CONNECT_SECONDS = 5
"""How long a scheduler may take to answer."""
ARRIVAL_SECONDS, REPLACEMENT_SECONDS = 10.0, 30.0
"""How long a build waits for the first worker, and for another when all are lost: a lost one may be started again."""
MAX_LOSSES = 3
"""Lost workers after which the cell that was running each time counts as the cause."""
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
        self._hint = f"Start some with `kbt workers {address}`, and then the same build"
        self._project, self.environment, self._progress = project, environment, progress
        self._topic = f"kbt-{uuid.uuid4().hex}"
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._attempts: dict[str, _Attempt] = {}
        self._lost: set[str] = set()
        """Addresses of workers that are gone."""
        self._workers: dict[str, WorkerInfo | None] = {}
        """Every worker that was seen, None for one that is not used."""
        self._used: dict[str, str] = {}
        """By operator, the worker that measured it last: the numbers of a table come from one device."""
        self._client = _connect(address)
        try:
            self._client.subscribe_topic("all", self._on_worker_event)
            self._client.subscribe_topic(self._topic, lambda event: self._on_step(event[1]))
            self._usable_workers(ARRIVAL_SECONDS, "has a scheduler, but no workers")
        except BaseException:
            self.close()
            raise
        workers = [info for info in self._workers.values() if info is not None]
        self.device, self.identity = workers[0].device, workers[0].identity
        # A power of two, since the scheduler adds and subtracts shares.
        self._slots = 1 << (min(info.threads for info in workers).bit_length() - 1)
        self.jobs, self.sessions = self._slots * len(workers), len(workers)

    def prepare(self, *_: object, **__: object) -> dict[CellName, Prepared]:
        """Do nothing: a worker makes the environments of the cells that it runs."""
        return {}

    def run(self, task: CellTask) -> StoredResult:
        return self._run([task], group="")[task.node.name]

    def measure(self, session: Session) -> None:
        first = session.nodes[0]
        tasks = [session.make_task(node, session.make_draft(node.name), 0) for node in session.nodes]
        session.results |= self._run(tasks, first.notebook.operator or first.name.notebook)

    def interrupt(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Disconnect from the scheduler, which releases what still runs for this build."""
        # Else the scheduler logs that it cannot tell this client that it has left.
        if self._client.status == "running":
            self._client.unsubscribe_topic("all")
        self._client.close(timeout=2)

    def _run(self, tasks: Sequence[CellTask], group: str) -> dict[CellName, StoredResult]:
        """Run the cells of a session, or one that does not measure, on one worker; on another when that is lost.

        A cell that was running at each of ``MAX_LOSSES`` losses has crashed; the others run without it.
        """
        waiting = {str(task.node.name): task for task in tasks}
        losses: Counter[str] = Counter()
        results: dict[CellName, StoredResult] = {}

        def fail(name: str, status: Status, failure: Failure) -> None:
            task = waiting.pop(name)
            results[task.node.name] = finish(task, status, failure, transient=True)

        while waiting:
            missing = "has no worker left; finished results are kept"
            usable = self._usable_workers(REPLACEMENT_SECONDS, missing)
            candidates = [self._used[group]] if self._used.get(group) in usable else usable
            shipment = pack(self._project, self.environment, list(waiting.values()))
            changes = {name: change for name, task in waiting.items() if (change := task.changed_input())}
            for name, change in changes.items():
                fail(name, Status.INVALID, outdated(f"{change} since this build began"))
            if changes:
                continue
            attempt = self._attempts[shipment.attempt] = _Attempt(group)
            # After a loss a cell runs alone, so that the cause is known.
            share = 1.0 if group or losses else 1.0 / self._slots
            try:
                entries = self._try(attempt, candidates, shipment, share)
            finally:
                del self._attempts[shipment.attempt]
            if entries is not None:
                for name, (result, files) in entries.items():
                    write_files(waiting[name].draft.folder, files)
                    results[waiting[name].node.name] = result
                return results
            cell, where = attempt.cell, f"worker {attempt.worker or candidates[0]} was lost"
            losses[cell] += 1
            last = losses[cell] == MAX_LOSSES
            if last and not cell:
                raise ProjectError(where, f"{MAX_LOSSES} times in a row before a cell ran")
            where += f" while {cell} ran" if cell else ""
            next_step = "not tried again" if last else "trying again on another worker"
            self._progress.note(f"{where}; {next_step} ({losses[cell]} of {MAX_LOSSES})")
            if last:
                message = f"its worker was lost {MAX_LOSSES} times while it ran"
                fail(cell, Status.CRASHED, Failure(type="WorkerLost", msg=message))
        return results

    def _try(
        self, attempt: _Attempt, candidates: list[str], shipment: Shipment, share: float
    ) -> dict[str, PackedEntry] | None:
        """Run cells on a worker, and return their results and files; None if the worker was lost."""
        kind = "session" if attempt.group else "cell"
        future = self._client.submit(
            run_shipment,
            shipment,
            self._topic,
            workers=candidates,
            resources={DEVICE: share},
            priority=1 if attempt.group else 0,
            key=f"kbt-{kind}-{shipment.attempt}",
            pure=False,
        )
        try:
            while not future.done():
                self._check()
                if attempt.worker in self._lost or self._lost.issuperset(candidates):
                    return None
                time.sleep(_POLL_SECONDS)
            entries: dict[str, PackedEntry] = future.result()
            return entries
        except (KilledWorker, InterruptedBuildError):
            self._check()
            return None  # the worker closes, and has ended what it ran
        except CancelledError:
            self._check()
            raise self._scheduler_gone() from None
        finally:
            if not future.done() and self._client.status == "running":
                future.cancel()
            future.release()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise InterruptedBuildError
        if self._client.status != "running":
            raise self._scheduler_gone()

    def _scheduler_gone(self) -> ProjectError:
        what = "the scheduler is gone; finished results are kept"
        return ProjectError(self._where, what, "", "Start it again, and then the same build")

    def _on_worker_event(self, event: tuple[float, dict[str, Any]]) -> None:
        if event[1].get("action") == "remove-worker":
            self._lost.add(event[1]["worker"])

    def _on_step(self, event: dict[str, Any]) -> None:
        """Report a step of an attempt; called in a thread that must not block."""
        running, step, arguments = self._attempts.get(event["attempt"]), event["step"], event["arguments"]
        if running is None or running.worker in self._lost:  # it was, or will be, given up
            return
        if step == "assigned":
            running.worker = arguments[0]
            if running.group:
                self._used[running.group] = running.worker
            return
        if step in {"cell_started", "process_started"}:
            running.cell = arguments[0]
        if step not in {"build_started", "cell_started"}:  # the build itself has reported these
            getattr(self._progress, step)(*arguments)

    def _usable_workers(self, seconds: float, missing: str) -> list[str]:
        """Return the addresses of the workers that may run cells; wait for one where there is none."""
        deadline = time.monotonic() + seconds
        while True:
            self._check()
            with self._lock:
                try:
                    addresses = sorted(self._client.nthreads())
                except (OSError, RuntimeError):
                    raise self._scheduler_gone() from None
                if new := [address for address in addresses if address not in self._workers]:
                    self._add_workers(new)
            if usable := [
                address for address in addresses if self._workers.get(address) and address not in self._lost
            ]:
                return usable
            if time.monotonic() > deadline:
                raise ProjectError(self._where, missing, "", self._hint)
            time.sleep(_POLL_SECONDS)

    def _add_workers(self, addresses: list[str]) -> None:
        first = not self._workers
        try:
            answers = self._client.run(
                describe_worker, self.environment, workers=addresses, on_error="return"
            )
        except (OSError, ValueError, TimeoutError):  # a worker was lost meanwhile
            return
        for address, answer in answers.items():
            try:
                self._workers[address] = self._checked(address, answer)
            except ProjectError as error:
                if first:
                    raise
                self._workers[address] = None
                self._progress.note(f"a new worker is not used: {error}")

    def _checked(self, address: str, answer: WorkerInfo | Exception) -> WorkerInfo:
        """Return a worker's description; one that cannot run cells, or would give other results, is an error."""
        where = f"worker {address}"
        if isinstance(answer, ProjectError):
            raise ProjectError(where, str(answer))
        if isinstance(answer, Exception):
            what = f"cannot run cells ({type(answer).__name__}: {answer})"
            raise ProjectError(where, what, "", "Start it with `kbt workers` of this version")
        if not answer.has_device:
            hint = f"Start it with `kbt workers`, or with `--resources {DEVICE}=1`"
            raise ProjectError(where, f"has no resource {DEVICE!r}", "", hint)
        if answer.code != CODE:
            what, hint = "has another version of kernels-bench-tools", "Update it there, and start it again"
            raise ProjectError(where, what, "the same code on all sides", hint)
        known = ((other, info) for other, info in self._workers.items() if info is not None)
        other, first = next(known, (address, answer))
        if answer.device != first.device:
            has, too = (f"{info.device.name} {info.device.driver}".strip() for info in (first, answer))
            what = f"its workers have different devices: {other} has {has}, {address} has {too}"
            raise ProjectError(self._where, what, "one kind of device", "Use a cluster for each kind")
        if unequal := sorted({*answer.identity} ^ {*first.identity}):
            what = f"its workers {other} and {address} differ in {', '.join(unequal[:5])}"
            raise ProjectError(self._where, what, "", "Install the same packages on all workers")
        return answer


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
        message = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ProjectError(
            f"cluster {address}",
            f"no scheduler answers ({message})",
            "the address of a Dask scheduler, such as tcp://host:8786",
            "`kbt workers` starts one and prints its address",
        ) from None
