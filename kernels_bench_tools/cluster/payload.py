"""What is sent to a worker: cells, and the content of every file that they read."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import file_digest
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.header import path_sources, read_header
from kernels_bench_tools.notebooks.project import CellPolicy, Project
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.build import CellContext
from kernels_bench_tools.records.hub import find_lock
from kernels_bench_tools.records.settings import OPERATORS, operator_modules, shared_files
from kernels_bench_tools.run.cache.entry import LOGS, Entry, StoredResult
from kernels_bench_tools.run.cache.key import source_files
from kernels_bench_tools.run.cell import CellTask
from kernels_bench_tools.run.environment.base import CONFIGURATIONS
from kernels_bench_tools.run.environment.variables import forwarded_variables

SOURCES_LIMIT = 256 * 2**20
"""Bytes of one path source that may be sent; more is most likely a folder of data."""

DEVICE = "device"
"""The Dask resource of a worker: a session takes all of it, a cell that does not measure takes a share."""

_PACKAGE_PARTS = ("pyproject.toml", "README.md", "LICENSE", PACKAGE_FOLDER.name, "templates")
"""What this package is built from, in its own checkout."""

Files = dict[str, tuple[bytes, int]]
"""Content and mode of files, by their absolute path on the client without the leading slash."""

PackedEntry = tuple[StoredResult, dict[str, bytes]]
"""The result of a cell, and its logs and artifacts by their path in an entry of the cache."""


@dataclass(frozen=True)
class Shipment:
    """Cells that run on one worker: the cells of a session, or one cell that does not measure."""

    project: Project
    environment: str
    """``"uv"`` or ``"current"``."""
    cells: list[CellName]
    nodes: list[Node]
    """The cells, and those that they need."""
    context: CellContext
    """The context of the first cell: workloads, mode, number of processes and commit are those of all cells."""
    policy: CellPolicy
    """What the cells may use; the values of variables that they are passed are the worker's own."""
    needed: dict[CellName, tuple[str, PackedEntry]]
    """Key and entry of each needed cell."""
    sources: Files
    """The project's own operators, what the headers of the cells read from the client's disk, and settings of uv."""
    inputs: Files
    """Data files of the cells, and the lock of hub kernels."""
    lock: str
    """Path of the lock in ``inputs``; empty if there is none."""
    variables: dict[str, str]
    client: str = field(default_factory=socket.gethostname)
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names the attempt to run the cells, in the events that a worker sends."""

    @property
    def root(self) -> str:
        """Path of the project, without the leading slash."""
        return rootless(self.project.root)

    @property
    def tree(self) -> str:
        """Digest of the sources and where they come from: cells with the same one share environments."""
        digest = hashlib.sha256(f"{self.client}\0{self.root}\n".encode())
        for path, (content, mode) in sorted(self.sources.items()):
            digest.update(os.fsencode(f"{path}\0{hashlib.sha256(content).hexdigest()}{mode}\n"))
        return digest.hexdigest()


def pack(project: Project, environment: str, tasks: Sequence[CellTask]) -> Shipment:
    """Return cells as they are sent to a worker; a path source that is too large is a ``ProjectError``."""
    first, nodes = tasks[0], {task.node.name: task.node for task in tasks}
    needed = {name: first.results[name] for node in nodes.values() for name in node.needs}
    data = {path for node in nodes.values() for path in node.files}
    lock = find_lock(first.node.notebook.path.parent)
    lock = lock.resolve() if lock is not None and lock.is_file() else None
    if lock:
        data.add(lock)
    folder, sources = project.operators_folder, set[Path]()
    if folder != PACKAGE_FOLDER / OPERATORS:  # which a worker has
        sources |= {*operator_modules(folder).values(), *shared_files(folder)}
    if environment == "uv":
        sources |= _read_by_headers(project, nodes.values())
    return Shipment(
        project=project,
        environment=environment,
        cells=list(nodes),
        nodes=[*nodes.values(), *(first.graph.nodes[name] for name in needed if name not in nodes)],
        context=first.context,
        policy=first.policy,
        needed={name: (entry.key, pack_entry(entry)) for name, entry in needed.items()},
        sources=_read(sources),
        inputs=_read(data),
        lock=rootless(lock) if lock else "",
        variables=forwarded_variables(os.environ),
    )


def rootless(path: Path) -> str:
    """Return an absolute path without its root."""
    return path.relative_to(path.anchor).as_posix()


def _read_by_headers(project: Project, nodes: Iterable[Node]) -> set[Path]:
    """Return the files that uv reads for the headers of cells: its settings, and packages that path sources name."""
    found: set[Path] = set()
    sources: set[Path] = set()
    for node in nodes:
        folders = [folder for folder in node.notebook.path.parents if folder.is_relative_to(project.root)]
        settings = (folder / name for folder in folders for name in CONFIGURATIONS)
        found |= {path for path in settings if path.is_file()}
        script = node.notebook.script_path(node.cell)
        written = path_sources(read_header(node.cell.code)).values()
        sources |= {Path(os.path.normpath(script.parent / path)) for path in written}
    for source in sources:
        own = (source / PACKAGE_FOLDER.name / "__init__.py").is_file()
        parts = [source / part for part in _PACKAGE_PARTS] if own else [source]
        files = {path for part in parts for path in source_files(part)}
        if sum(path.stat().st_size for path in files) > SOURCES_LIMIT:
            what = f"holds more than {SOURCES_LIMIT // 2**20} MiB, too much to send to a worker"
            raise ProjectError(str(source), what, "A package's folder", "Remove what is not source")
        found |= files
    return found


def _read(paths: Iterable[Path]) -> Files:
    return {
        rootless(path): (path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644) for path in paths
    }


def pack_entry(entry: Entry) -> PackedEntry:
    """Return an entry of the cache as it is sent."""
    names = [*LOGS, *(f"{entry.artifacts.name}/{name}" for name in entry.result.artifacts)]
    return entry.result, {name: (entry.folder / name).read_bytes() for name in names}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of an entry that was sent; a path that leads out of ``folder`` is a ``ProjectError``."""
    for name, data in files.items():
        path = folder / name
        if not Path(os.path.normpath(path)).is_relative_to(folder):
            raise ProjectError(name, "is not a path within a cell's results")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _package_digest(*patterns: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in PACKAGE_FOLDER.glob(pattern)):
        digest.update(f"{path.relative_to(PACKAGE_FOLDER).as_posix()}\0{file_digest(path)}\n".encode())
    return digest.hexdigest()


_RUNNER = _package_digest("*.py", "records/*.py", "notebooks/*.py", "run/**/*.py", "cluster/*.py")
"""Of the code that this process has loaded, even if the files change later."""


def code_digest(environment: str) -> str:
    """Return a digest of the code of this package that affects results: what runs cells, and what they import.

    Cells in environments of their own import the package that their headers name.
    """
    if environment == "uv":
        return _RUNNER
    parts = ("records", "hub", "measure", "operators", "results", "chart")
    return _RUNNER + _package_digest("*.py", *(f"{part}/**/*.py" for part in parts))
