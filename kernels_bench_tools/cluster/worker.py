"""What runs on the workers of a cluster.

A worker runs its cells as a local build does, and sends their results and files back. They end as soon as the
scheduler releases the task: the build was interrupted or is gone, or the worker closes.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Status as WorkerStatus
from distributed import Worker, get_worker

from kernels_bench_tools.cluster.payload import (
    DEVICE,
    Files,
    Shipment,
    harness_digest,
    rootless,
    runner_digest,
)
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.notebooks.graph import Graph, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.entry import LOGS, Entry, StoredResult
from kernels_bench_tools.run.cache.key import Fingerprints
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.environment.base import CellEnvironment, find_environment
from kernels_bench_tools.run.executor import LocalExecutor
from kernels_bench_tools.run.git import Revision
from kernels_bench_tools.run.progress import ForwardedProgress, Progress
from kernels_bench_tools.run.schedule import Execution
from kernels_bench_tools.schema.device import Device, current_device

_POLL_SECONDS = 0.05
_LINES, _LINE_LENGTH = 20, 500
"""How much of a cell's output is sent at each poll; its logs have all of it."""
_ALIVE = {WorkerStatus.running, WorkerStatus.paused, WorkerStatus.init, WorkerStatus.starting}
_RUNNER = runner_digest()
"""Of the code that this process has loaded, even if the files change later."""
_unpacking = threading.Lock()

CellFiles = tuple[StoredResult, dict[str, bytes]]
"""The result of a cell, and its logs and artifacts by their path in an entry of the cache."""


@dataclass(frozen=True)
class WorkerInfo:
    """What a build has to know about a worker."""

    device: Device
    identity: list[str]
    """What of its environment changes results."""
    runner: str
    """``runner_digest`` of the code that the worker has loaded."""
    harness: str
    """``harness_digest`` of the code on the worker."""
    threads: int
    has_device: bool
    """Whether it was started with the resource ``DEVICE``."""


class RemoteEnvironment:
    """An environment of the workers: they determine its identity, and the client some of its variables."""

    def __init__(
        self,
        local: CellEnvironment,
        identity: list[str] | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        self.name = local.name
        self.script = local.script
        self.shared_script = local.shared_script
        self.prepare = local.prepare
        self._local = local
        self._identity = identity
        self._variables = variables or {}

    def identity(self) -> list[str]:
        """Return what of the environment changes results."""
        return self._local.identity() if self._identity is None else self._identity

    def variables(self, home: Path) -> dict[str, str]:
        """Return the environment variables of a cell whose home is ``home``."""
        return self._local.variables(home) | self._variables


class StepSender:
    """Sends the steps of a build to the client, as events; output of cells is sent by :meth:`flush`."""

    def __init__(self, worker: Worker, topic: str, attempt: str) -> None:
        self._worker = worker
        self._topic = topic
        self._attempt = attempt
        self._lines: list[tuple[str, str]] = []

    def send(self, step: str, *arguments: object) -> None:
        """Send a step, with the arguments of the method of ``Progress`` that it names."""
        event = {"attempt": self._attempt, "step": step, "arguments": arguments}
        self._worker.log_event(self._topic, event)

    def receive(self, step: str, *arguments: Any) -> None:
        """Send a step; keep the last lines of output for :meth:`flush`. The client reports finished cells itself."""
        if step == "cell_output":
            name, line = arguments
            self._lines.append((name, line[:_LINE_LENGTH]))
            del self._lines[:-_LINES]
        elif step != "cell_finished":
            self.send(step, *arguments)

    def flush(self) -> None:
        """Send the lines that are kept."""
        while self._lines:
            self.send("cell_output", *self._lines.pop(0))


def describe_worker(environment: str, dask_worker: Worker) -> WorkerInfo:
    """Return what a build has to know about this worker."""
    return WorkerInfo(
        device=current_device(),
        identity=find_environment(environment).identity(),
        runner=_RUNNER,
        harness=harness_digest(),
        threads=dask_worker.state.nthreads,
        has_device=dask_worker.state.total_resources.get(DEVICE, 0) >= 1,
    )


def run_shipment(shipment: Shipment, topic: str) -> dict[str, CellFiles]:
    """Run cells on this worker, and return their results and files; each step is sent as an event of ``topic``.

    Raises:
        InterruptedBuildError: The task was released, or the worker closes.
    """
    worker = get_worker()
    sender = StepSender(worker, topic, shipment.attempt)
    sender.send("assigned", worker.address)
    tree = _unpack(Path(worker.local_directory) / "kbt", shipment)
    project = replace(shipment.project, root=tree / shipment.root)
    state = project.state / "builds" / shipment.attempt
    try:
        execution = _execution(shipment, project, tree, state, ForwardedProgress(sender.receive))
        with _interrupted_with_task(worker, execution, sender):
            execution.run(shipment.cells, set(shipment.cells))
        return {str(name): _read_entry(execution.results[name]) for name in shipment.cells}
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _unpack(folder: Path, shipment: Shipment) -> Path:
    """Return a folder with the files of a shipment at their paths on the client."""
    tree = folder / "trees" / shipment.tree
    with _unpacking:
        if not tree.is_dir():
            temporary = folder / shipment.attempt
            (temporary / shipment.root).mkdir(parents=True)
            _write(temporary, shipment.sources)
            tree.parent.mkdir(exist_ok=True)
            temporary.rename(tree)
        _write(tree, shipment.inputs)
    return tree


def _write(folder: Path, files: Files) -> None:
    for name, file in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != file.content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, file.content, sync=False)
        path.chmod(0o755 if file.executable else 0o644)


def _execution(
    shipment: Shipment, project: Project, tree: Path, state: Path, progress: Progress
) -> Execution:
    """Return a build of the cells in a cache of their own, with the results of the cells that they need."""
    cache = CellCache(state)
    for name, content in shipment.artifacts.items():
        path = cache.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    results = {name: Entry(cache.folder / key, result) for name, (key, result) in shipment.needed.items()}
    for entry in results.values():
        entry.artifacts.mkdir(parents=True, exist_ok=True)
    lock = {"KBT_KERNELS_LOCK": str(tree / shipment.lock)} if shipment.lock else {}
    environment = RemoteEnvironment(
        find_environment(shipment.environment), variables=shipment.variables | lock
    )
    device, context = current_device(), shipment.context
    graph = Graph({node.name: _moved(node, tree) for node in shipment.nodes})
    executor = LocalExecutor(
        project,
        device,
        environment,
        len(shipment.cells),
        progress,
        hidden={state: ".kbt", project.root: "", tree: ""},
        # Sessions of one build wait for one another where workers share a device.
        wait_progress=Progress(),
    )
    return Execution(
        project=project,
        graph=graph,
        executor=executor,
        workloads=context.workloads,
        mode=context.mode,
        process_count=context.processes,
        cache=cache,
        fingerprints=Fingerprints(project, graph, device, environment, context.workloads, context.mode),
        checkout=Revision(context.commit, context.dirty),
        progress=progress,
        policy=shipment.policy,
        results=results,
    )


def _moved(node: Node, tree: Path) -> Node:
    """Return a cell whose notebook and files are in ``tree``."""
    notebook = replace(node.notebook, path=tree / rootless(node.notebook.path))
    return replace(node, notebook=notebook, files=[tree / rootless(path) for path in node.files])


def _read_entry(entry: Entry) -> CellFiles:
    logs = [entry.folder / name for name in LOGS]
    artifacts = [entry.artifacts / name for name in entry.result.artifacts]
    files = {path.relative_to(entry.folder).as_posix(): path.read_bytes() for path in [*logs, *artifacts]}
    return entry.result, files


@contextmanager
def _interrupted_with_task(worker: Worker, execution: Execution, sender: StepSender) -> Iterator[None]:
    """Interrupt an execution when the current task is released; meanwhile send the output of its cells."""
    key, over = worker.get_current_task(), threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_SECONDS):
            sender.flush()
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled" or worker.status not in _ALIVE:
                execution.executor.interrupt()
                return

    thread = threading.Thread(target=watch, name="kbt-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sender.flush()
