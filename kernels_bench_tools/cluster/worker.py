"""What runs on the workers of a cluster.

A worker runs its cells as a local build does, and sends their results and files back. They end as soon as the
scheduler releases the task: the build was interrupted or is gone, or the worker closes.
"""

from __future__ import annotations

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
    PackedEntry,
    Shipment,
    code_digest,
    pack_entry,
    rootless,
    write_files,
)
from kernels_bench_tools.file_io import update_file
from kernels_bench_tools.git import Checkout
from kernels_bench_tools.notebooks.graph import Graph, Node
from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.records.device import Device, current_device
from kernels_bench_tools.run.cache.entry import Entry
from kernels_bench_tools.run.cache.key import Fingerprints
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.run.executor import LocalExecutor
from kernels_bench_tools.run.progress import ForwardedProgress, Progress
from kernels_bench_tools.run.schedule import Execution

_POLL_SECONDS = 0.05
_ALIVE = {WorkerStatus.running, WorkerStatus.paused, WorkerStatus.init, WorkerStatus.starting}
_unpacking = threading.Lock()


@dataclass(frozen=True)
class WorkerInfo:
    """What a build has to know about a worker."""

    device: Device
    identity: list[str]
    """What of its environment changes results."""
    code: str
    """``code_digest`` of the worker."""
    threads: int
    has_device: bool
    """Whether it was started with the resource ``DEVICE``."""


def describe_worker(environment: str, dask_worker: Worker) -> WorkerInfo:
    """Return what a build has to know about this worker."""
    return WorkerInfo(
        device=current_device(),
        identity=find_environment(environment).identity(),
        code=code_digest(environment),
        threads=dask_worker.state.nthreads,
        has_device=dask_worker.state.total_resources.get(DEVICE, 0) >= 1,
    )


def run_shipment(shipment: Shipment, topic: str) -> dict[str, PackedEntry]:
    """Run cells on this worker, and return their results and files; each step is sent as an event of ``topic``.

    Lines that cells print are only in their logs. If the task is released, or the worker closes, an ``InterruptedBuildError`` is raised.
    """
    worker = get_worker()

    def send(step: str, *arguments: Any) -> None:
        worker.log_event(topic, {"attempt": shipment.attempt, "step": step, "arguments": arguments})

    def receive(step: str, *arguments: Any) -> None:
        if step not in {"cell_output", "cell_finished"}:  # the client reports the latter itself
            send(step, *arguments)

    send("assigned", worker.address)
    tree = _unpack(Path(worker.local_directory) / "kbt", shipment)
    project = replace(shipment.project, root=tree / shipment.root)
    state = project.state / "builds" / shipment.attempt
    progress, context, cells = ForwardedProgress(receive), shipment.context, shipment.cells
    environment, cache = find_environment(shipment.environment), CellCache(state)
    lock = {"KBT_KERNELS_LOCK": str(tree / shipment.lock)} if shipment.lock else {}
    try:
        results = {}
        for name, (key, (result, files)) in shipment.needed.items():
            results[name] = Entry(cache.folder / key, result)
            results[name].artifacts.mkdir(parents=True)
            write_files(results[name].folder, files)
        executor = LocalExecutor(
            project,
            current_device(),
            environment,
            len(cells),
            progress,
            hidden={state: ".kbt", project.root: "", tree: ""},
            variables=shipment.variables | lock,
            # Sessions of one build wait for one another where workers share a device.
            wait_progress=Progress(),
        )
        checkout = Checkout(project.root)
        checkout.commit, checkout.dirty = context.origin.commit, context.origin.dirty  # the client's
        graph = Graph({node.name: _moved(node, tree) for node in shipment.nodes})
        measured = context.workloads, context.mode, context.effect
        execution = Execution(
            executor=executor,
            fingerprints=Fingerprints(
                project, graph, executor.device, environment.name, executor.identity, *measured
            ),
            process_counts=[context.processes],
            cache=cache,
            checkout=checkout,
            progress=progress,
            policy=shipment.policy,
            results=results,
        )
        with _interrupted_with_task(worker, execution):
            execution.run(cells, set(cells))
        return {str(name): pack_entry(execution.results[name]) for name in cells}
    finally:
        remove_tree(state, project.state)


def _unpack(folder: Path, shipment: Shipment) -> Path:
    """Return a folder with the files of a shipment at their paths on the client."""

    def write(target: Path, files: Files) -> None:
        for name, (content, mode) in files.items():
            update_file(target / name, content)
            (target / name).chmod(mode)

    tree = folder / "trees" / shipment.tree
    with _unpacking:
        if not tree.is_dir():
            temporary = folder / shipment.attempt
            (temporary / shipment.root).mkdir(parents=True)
            write(temporary, shipment.sources)
            tree.parent.mkdir(exist_ok=True)
            temporary.rename(tree)
        write(tree, shipment.inputs)
    return tree


def _moved(node: Node, tree: Path) -> Node:
    """Return a cell whose notebook and files are in ``tree``."""
    notebook = replace(node.notebook, path=tree / rootless(node.notebook.path))
    return replace(node, notebook=notebook, files=[tree / rootless(path) for path in node.files])


@contextmanager
def _interrupted_with_task(worker: Worker, execution: Execution) -> Iterator[None]:
    """Interrupt an execution when the current task is released."""
    key, over = worker.get_current_task(), threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_SECONDS):
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
