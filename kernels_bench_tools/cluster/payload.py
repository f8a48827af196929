"""What is sent to a worker: cells, and the content of every file that they read."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import file_digest
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.header import path_sources, read_header
from kernels_bench_tools.notebooks.limits import CellPolicy
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.entry import StoredResult
from kernels_bench_tools.run.cache.sources import source_files
from kernels_bench_tools.run.cell import CellTask
from kernels_bench_tools.run.environment.base import PACKAGE_FOLDER
from kernels_bench_tools.schema.build import CellContext
from kernels_bench_tools.schema.hub import find_lock

SOURCES_LIMIT = 256 * 2**20
"""Bytes of one path source that may be sent; more is most likely a folder of data."""

DEVICE = "device"
"""The Dask resource of a worker: a session takes all of it, a cell that does not measure takes a share."""

_FORWARDED = ("USE_HUB_KERNELS", "UVNOTE_PLATFORM")
"""Variables that are part of a result's key, so that those of the worker must not be used instead."""
_UV_SETTINGS = ("pyproject.toml", "uv.toml", ".python-version", ".python-versions")
_PACKAGE_PARTS = ("pyproject.toml", "README.md", "LICENSE", PACKAGE_FOLDER.name, "templates")
"""What this package is built from, in its own checkout."""


@dataclass(frozen=True)
class File:
    """A file to be written on a worker."""

    content: bytes
    executable: bool = False


Files = dict[str, File]
"""Files by their absolute path on the client, without the leading slash."""


@dataclass(frozen=True)
class Shipment:
    """Cells that run on one worker: the cells of a session, or one cell that does not measure."""

    project: Project
    """The project as on the client."""
    environment: str
    """``"uv"`` or ``"current"``."""
    cells: list[CellName]
    nodes: list[Node]
    """The cells, and those that they need."""
    context: CellContext
    """The context of the first cell: workloads, mode, number of processes and commit are those of all cells."""
    policy: CellPolicy
    """What the cells may use; the values of variables that they are passed are the worker's own."""
    needed: dict[CellName, tuple[str, StoredResult]]
    """Key and result of each needed cell."""
    artifacts: dict[str, bytes]
    """Artifacts of needed cells, by their path in the cell cache."""
    sources: Files
    """What the headers of the cells read from the client's disk, and settings of uv."""
    inputs: Files
    """Data files of the cells, and the lock of hub kernels."""
    lock: str
    """Path of the lock in ``inputs``; empty if there is none."""
    variables: dict[str, str]
    client: str = field(default_factory=socket.gethostname)
    """The client's host."""
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
        for path, file in sorted(self.sources.items()):
            content = hashlib.sha256(file.content).hexdigest()
            digest.update(os.fsencode(f"{path}\0{content}{file.executable}\n"))
        return digest.hexdigest()


def pack(project: Project, environment: str, tasks: Sequence[CellTask]) -> Shipment:
    """Return cells as they are sent to a worker.

    Raises:
        ProjectError: A path source is too large.
    """
    nodes = {task.node.name: task.node for task in tasks}
    needed = {name: tasks[0].results[name] for node in nodes.values() for name in node.needs}
    data = {path for node in nodes.values() for path in node.files}
    lock = find_lock(tasks[0].node.notebook.path.parent)
    if lock is not None and lock.is_file():
        data.add(lock := lock.resolve())
    else:
        lock = None
    return Shipment(
        project=project,
        environment=environment,
        cells=list(nodes),
        nodes=[*nodes.values(), *(tasks[0].graph.nodes[name] for name in needed if name not in nodes)],
        context=tasks[0].context,
        policy=tasks[0].policy,
        needed={name: (entry.key, entry.result) for name, entry in needed.items()},
        artifacts={
            f"{entry.key}/artifacts/{name}": (entry.artifacts / name).read_bytes()
            for entry in needed.values()
            for name in entry.result.artifacts
        },
        sources=_sources(project, nodes.values()) if environment == "uv" else {},
        inputs={rootless(path): _read(path) for path in data},
        lock=rootless(lock) if lock else "",
        variables={name: os.environ[name] for name in _FORWARDED if name in os.environ},
    )


def rootless(path: Path) -> str:
    """Return an absolute path without its root."""
    return path.relative_to(path.anchor).as_posix()


def _sources(project: Project, nodes: Iterable[Node]) -> Files:
    files: Files = {}
    read: set[Path] = set()
    for node in nodes:
        folders = [one for one in node.notebook.path.parents if one.is_relative_to(project.root)]
        settings = [one / name for one in folders for name in _UV_SETTINGS if (one / name).is_file()]
        files |= {rootless(path): _read(path) for path in settings}
        script = node.notebook.script_path(node.cell)
        for written in path_sources(read_header(node.cell.code)).values():
            source = Path(os.path.normpath(script.parent / written))
            if source not in read:
                files |= _read_source(source)
                read.add(source)
    return files


def _read_source(source: Path) -> Files:
    found: Files = {}
    size = 0
    own = (source / PACKAGE_FOLDER.name / "__init__.py").is_file()
    for path in _package_files(source) if own else source_files(source):
        size += path.stat().st_size
        if size > SOURCES_LIMIT:
            what = f"holds more than {SOURCES_LIMIT // 2**20} MiB, too much to send to a worker"
            raise ProjectError(str(source), what, "A package's folder", "Remove what is not source")
        found[rootless(path)] = _read(path)
    return found


def _package_files(checkout: Path) -> Iterator[Path]:
    for part in (checkout / part for part in _PACKAGE_PARTS):
        for path in [part] if part.is_file() else part.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _read(path: Path) -> File:
    return File(path.read_bytes(), os.access(path, os.X_OK))


def runner_digest() -> str:
    """Return a digest of the code of this package that runs cells, as it is on the disk now."""
    return _package_digest("*.py", "schema/*.py", "notebooks/*.py", "run/**/*.py", "cluster/*.py")


def harness_digest() -> str:
    """Return a digest of the code of this package that cells import, as it is on the disk now."""
    parts = ("schema", "hub", "measure", "operators", "summarize")
    return _package_digest("*.py", *(f"{part}/**/*.py" for part in parts))


def _package_digest(*patterns: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in PACKAGE_FOLDER.glob(pattern)):
        digest.update(f"{path.relative_to(PACKAGE_FOLDER).as_posix()}\0{file_digest(path)}\n".encode())
    return digest.hexdigest()
