"""Cells that run on one worker of a cluster, with every file that they read: made by a build, run by a worker.

A worker runs its cells as a local build does, and sends their results and files back. They end as soon as the
scheduler releases the task: the build was interrupted or is gone, or the worker closes.
"""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import Status as WorkerStatus
from distributed import Worker, get_worker

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import file_digest, read_file, read_struct
from kernels_bench_tools.git import Checkout
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.header import read_header
from kernels_bench_tools.notebooks.project import CellPolicy, Project
from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.device import Device, current_device
from kernels_bench_tools.records.hub import find_lock
from kernels_bench_tools.records.request import CellContext
from kernels_bench_tools.records.settings import OPERATORS, operator_modules, shared_files
from kernels_bench_tools.run.cache.key import Fingerprints, source_files
from kernels_bench_tools.run.cache.store import RESULT, CellCache, Entry, StoredResult
from kernels_bench_tools.run.cell import CellTask
from kernels_bench_tools.run.environment.base import find_environment, local_sources
from kernels_bench_tools.run.environment.variables import forwarded_variables
from kernels_bench_tools.run.executor import LocalExecutor
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.progress import ForwardedProgress, Progress
from kernels_bench_tools.run.schedule import Execution, Results

DEVICE = "device"
"""The Dask resource of a worker: a session takes all of it, a cell that does not measure takes a share."""
SOURCES_LIMIT = 256 * 2**20
"""Bytes of one path source that may be sent; more is most likely a folder of data."""
_PACKAGE_PARTS = ("pyproject.toml", "README.md", "LICENSE", PACKAGE_FOLDER.name, "templates")
"""What this package is built from, in its own checkout."""
_POLL_SECONDS = 0.05
_ALIVE = {WorkerStatus.running, WorkerStatus.paused, WorkerStatus.init, WorkerStatus.starting}
_unpacking = threading.Lock()


@dataclass(frozen=True)
class WorkerInfo:
    device: Device
    identity: list[str]
    """What of its environment changes results."""
    code: str
    """Digest of this package as it was when the process began."""
    has_device: bool
    """Whether it was started with the resource ``DEVICE``."""
    threads: int

    def check(self, other: WorkerInfo, where: str) -> None:
        """Raise a ``ProjectError`` if a worker would give other results than ``other``, or cannot run cells."""
        if not self.has_device:
            hint = f"Start it with `--resources {DEVICE}=1`"
            raise ProjectError(where, f"has no resource {DEVICE!r}", "", hint)
        if self.code != other.code:
            what, hint = "has other code of kernels-bench-tools", "Update it there, and start it again"
            raise ProjectError(where, what, "the same code here and on all workers", hint)
        if self.device != other.device:
            has, too = (f"{info.device.name} {info.device.driver}".strip() for info in (self, other))
            raise ProjectError(
                where, f"has {has}, another worker has {too}", "one kind of device in a cluster"
            )
        if unequal := sorted({*self.identity} ^ {*other.identity}):
            what = f"differs from another worker in {', '.join(unequal[:5])}"
            raise ProjectError(where, what, "the same packages on all workers")


def describe_worker(environment: str, dask_worker: Worker) -> WorkerInfo:
    state = dask_worker.state
    has_device = state.total_resources.get(DEVICE, 0) >= 1
    identity = find_environment(environment).identity()
    return WorkerInfo(current_device(), identity, CODE, has_device, state.nthreads)


@dataclass(frozen=True)
class Shipment:
    """The cells of a session, or one cell that does not measure."""

    project: Project
    environment: str
    """``"uv"`` or ``"current"``."""
    nodes: list[Node]
    """The cells to run, and those that they need."""
    context: CellContext
    """The context of the first cell: request, number of processes and commit are those of all cells."""
    policy: CellPolicy
    """What the cells may use; the values of variables that they are passed are the worker's own."""
    worker: WorkerInfo
    """What a worker must be like."""
    needed: dict[CellName, tuple[str, bytes]]
    """Key and archived entry of each needed cell."""
    sources: bytes
    """Archive of the project's own operators, and what the headers of the cells read from the client's disk."""
    inputs: bytes
    """Archive of data files of the cells, and of the lock of hub kernels."""
    lock: str
    """Path of the lock in ``inputs``; empty if there is none."""
    variables: dict[str, str]
    client: str = field(default_factory=socket.gethostname)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the attempt to run the cells, in the events that a worker sends."""

    @property
    def cells(self) -> list[CellName]:
        return [node.name for node in self.nodes if node.name not in self.needed]


def pack(project: Project, environment: str, tasks: Sequence[CellTask], worker: WorkerInfo) -> Shipment:
    """Return cells as they are sent to a worker; a path source that is too large is a ``ProjectError``."""
    first, nodes = tasks[0], {task.node.name: task.node for task in tasks}
    needed = {name for node in nodes.values() for name in node.needs}
    data = {path for node in nodes.values() for path in node.files}
    lock = find_lock(first.node.notebook.path.parent)
    lock = lock.resolve() if lock is not None and lock.is_file() else None
    if lock:
        data.add(lock)
    folder, sources = project.operators_folder, set[Path]()
    if folder != PACKAGE_FOLDER / OPERATORS:  # which a worker has
        sources |= {*operator_modules(folder).values(), *shared_files(folder)}
    if environment == "uv":
        sources |= _read_by_headers(nodes.values())
    return Shipment(
        project=project,
        environment=environment,
        nodes=[*nodes.values(), *(first.graph.nodes[name] for name in needed)],
        context=first.context,
        policy=first.policy,
        worker=worker,
        needed={name: (first.results[name].key, _archive_entry(first.results[name])) for name in needed},
        sources=_archive(sources),
        inputs=_archive(data),
        lock=_rootless(lock) if lock else "",
        variables=forwarded_variables(os.environ),
    )


def _rootless(path: Path) -> str:
    return path.relative_to(path.anchor).as_posix()


def _read_by_headers(nodes: Iterable[Node]) -> set[Path]:
    """Return the files that uv reads for the headers of cells: packages that path sources name."""
    read: set[Path] = set()
    sources: set[Path] = set()
    for node in nodes:
        script = node.notebook.script_path(node.cell)
        sources |= {*local_sources(read_header(node.cell.code), script).values()}
    for source in sources:
        own = (source / PACKAGE_FOLDER.name / "__init__.py").is_file()
        parts = [source / part for part in _PACKAGE_PARTS] if own else [source]
        files = {path for part in parts for path in source_files(part)}
        if sum(path.stat().st_size for path in files) > SOURCES_LIMIT:
            what = f"is larger than {SOURCES_LIMIT // 2**20} MiB, the limit for sources sent to a worker"
            raise ProjectError(str(source), what, "A package's folder", "Remove what is not source")
        read |= files
    return read


def _archive(paths: Iterable[Path], root: Path = Path("/")) -> bytes:
    """Return an archive of files by their paths below ``root``; equal files give equal bytes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in sorted(paths):
            about = tarfile.TarInfo(path.relative_to(root).as_posix())
            content = read_file(path)
            about.size, about.mode = len(content), 0o755 if os.access(path, os.X_OK) else 0o644
            archive.addfile(about, io.BytesIO(content))
    return data.getvalue()


def _archive_entry(entry: Entry) -> bytes:
    return _archive((path for path in entry.folder.rglob("*") if path.is_file()), entry.folder)


def unpack(archive: bytes, folder: Path) -> None:
    """Write the files of an archive into ``folder``; one that would be elsewhere is a ``tarfile.TarError``."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def run_shipment(shipment: Shipment, topic: str) -> dict[str, bytes]:
    """Run cells on this worker, and return their results and files; each step is sent as an event of ``topic``.

    Lines that cells print are only in their logs. If the task is released, or the worker closes, an ``InterruptedBuildError`` is raised.
    """
    worker = get_worker()
    key, over = worker.get_current_task(), threading.Event()

    def send(step: str, *arguments: Any) -> None:
        if step not in {"cell_output", "cell_finished"}:  # the client reports the latter itself
            event = {
                "attempt": shipment.attempt,
                "worker": worker.address,
                "step": step,
                "arguments": arguments,
            }
            worker.log_event(topic, event)

    def interrupt_with_task() -> None:
        while not over.wait(_POLL_SECONDS):
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled" or worker.status not in _ALIVE:
                executor.interrupt()
                return

    describe_worker(shipment.environment, worker).check(shipment.worker, f"worker {worker.address}")
    send("assigned")
    tree = _unpack(Path(worker.local_directory) / "kbt", shipment)
    project = replace(shipment.project, root=tree / _rootless(shipment.project.root))
    state = project.state / "builds" / shipment.attempt
    state.parent.mkdir(parents=True, exist_ok=True)
    progress, context, cells = ForwardedProgress(send), shipment.context, shipment.cells
    cache = CellCache(state)
    executor = LocalExecutor(
        project,
        current_device(),
        find_environment(shipment.environment),
        len(cells),
        progress,
        hidden={state: ".kbt", project.root: "", tree: ""},
        variables=shipment.variables
        | ({"KBT_KERNELS_LOCK": str(tree / shipment.lock)} if shipment.lock else {}),
        # Sessions of one build wait for one another where workers share a device.
        wait_progress=Progress(),
    )
    watch = threading.Thread(target=interrupt_with_task, name="kbt-watch", daemon=True)
    watch.start()
    try:
        results = Results()
        for name, (entry_key, archive) in shipment.needed.items():
            draft = cache.draft()  # the client's key is not that of this worker
            unpack(archive, draft.folder)
            result = read_struct(draft.folder / RESULT, StoredResult)
            results.settled[name] = cache.commit(draft, entry_key, result)
        checkout = Checkout(project.root)
        checkout.commit, checkout.dirty = context.origin.commit, context.origin.dirty  # the client's
        graph = Graph({node.name: _moved(node, tree) for node in shipment.nodes})
        execution = Execution(
            executor=executor,
            fingerprints=Fingerprints(
                project,
                graph,
                executor.device,
                executor.identity,
                context.request,
                operator_sources=context.sources,
            ),
            cache=cache,
            checkout=checkout,
            progress=progress,
            options=BuildOptions(processes=context.processes),
            policy=shipment.policy,
            results=results,
        )
        execution.run(cells, set(cells))
        return {str(name): _archive_entry(results.settled[name]) for name in cells}
    finally:
        over.set()
        watch.join()
        remove_tree(state, project.state)


def _unpack(folder: Path, shipment: Shipment) -> Path:
    """Return a folder with the files of a shipment at their paths on the client; equal sources share environments."""
    root = _rootless(shipment.project.root)
    digest = hashlib.sha256(f"{shipment.client}\0{root}\n".encode() + shipment.sources).hexdigest()
    tree = folder / "trees" / digest
    with _unpacking:
        if not tree.is_dir():
            temporary = folder / shipment.attempt
            (temporary / root).mkdir(parents=True)
            unpack(shipment.sources, temporary)
            tree.parent.mkdir(exist_ok=True)
            temporary.rename(tree)
        unpack(shipment.inputs, tree)
    return tree


def _moved(node: Node, tree: Path) -> Node:
    """Return a cell whose notebook and files are in ``tree``."""
    notebook = replace(node.notebook, path=tree / _rootless(node.notebook.path))
    return replace(node, notebook=notebook, files=[tree / _rootless(path) for path in node.files])


CODE = hashlib.sha256(
    b"".join(
        os.fsencode(f"{path.relative_to(PACKAGE_FOLDER)}\0{file_digest(path)}\n")
        for path in sorted(PACKAGE_FOLDER.rglob("*.py"))
    )
).hexdigest()
"""Digest of this package when this process began, even if files change later."""
