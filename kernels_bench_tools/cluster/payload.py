"""What travels to a worker of a cluster and back: cells, what they are told, and files by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kernels_bench_tools.file_io import file_digest
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.run.cache.store import StoredResult
from kernels_bench_tools.run.environment.base import PACKAGE_FOLDER
from kernels_bench_tools.run.limits import CellPolicy
from kernels_bench_tools.schema.build import CellContext, Needs
from kernels_bench_tools.schema.device import Device


@dataclass(frozen=True)
class Source:
    """A file of a path source."""

    digest: str
    executable: bool


@dataclass(frozen=True)
class Recipe:
    """What a cell's environment is made of. Paths are absolute on the client, without the leading slash."""

    build: str
    """Of which build it is; the next one looks again whether its environment is as it should be."""
    environment: str
    """``"uv"`` or ``"current"``."""
    script: str
    """The script's text."""
    file: str
    """The script's file name."""
    notebook: str
    """Folder of the notebook, within the project."""
    root: str
    """Folder of the project."""
    sources: Mapping[str, Source]
    """What the script's header takes from the client's disk."""

    @cached_property
    def tree(self) -> str:
        """Digest of everything that lies around the script."""
        listed = "".join(
            f"{path}\0{one.digest}{one.executable}\n" for path, one in sorted(self.sources.items())
        )
        return hashlib.sha256(f"{self.root}\n{listed}".encode()).hexdigest()

    @property
    def digests(self) -> set[str]:
        """What it needs of the store."""
        return {source.digest for source in self.sources.values()}


@dataclass(frozen=True)
class Links:
    """A cell's needs, without the notebooks around them."""

    local: list[CellName]
    foreign: list[CellName]
    whole: dict[str, list[CellName]]


@dataclass(frozen=True)
class Job:
    """One process of a cell, as it travels to a worker."""

    recipe: Recipe
    name: str
    cell: Cell
    context: CellContext
    device: Device
    policy: CellPolicy
    """What it may use; variables that it is passed are the worker's own."""
    needs: Needs
    """With the client's paths; the worker puts its own in their place."""
    links: Links
    needed: dict[CellName, tuple[str, StoredResult]]
    """Key and result of each needed cell."""
    files: dict[str, str]
    """Data files: path within the project to digest."""
    lock: str
    """Digest of the lock of hub kernels; empty for none."""
    variables: dict[str, str]
    session: str = ""
    """The session that it is part of; empty for a cell that does not measure."""

    @property
    def digests(self) -> set[str]:
        """Everything that it needs of the store."""
        artifacts = {digest for _, result in self.needed.values() for digest in result.artifacts.values()}
        lock = {self.lock} if self.lock else set[str]()
        return artifacts | set(self.files.values()) | lock | self.recipe.digests


@dataclass(frozen=True)
class Left:
    """What a process left: its result, and its files by their path in the entry."""

    result: StoredResult
    files: dict[str, bytes]

    @cached_property
    def artifacts(self) -> dict[str, str]:
        """Name to digest of the artifacts."""
        return {
            name.removeprefix("artifacts/"): hashlib.sha256(data).hexdigest()
            for name, data in self.files.items()
            if name.startswith("artifacts/")
        }


@dataclass(frozen=True)
class Missing:
    """The worker's answer to a job some of whose files it does not have."""

    digests: set[str]


@dataclass(frozen=True)
class Busy:
    """The worker's answer to a job that may not run beside a measurement: another build's, for example."""


def runner_digest() -> str:
    """Return a digest of what of this package runs cells, as it lies on the disk now."""
    return _package_digest("*.py", "schema/*.py", "notebooks/*.py", "run/**/*.py", "cluster/*.py")


def harness_digest() -> str:
    """Return a digest of what of this package cells import, as it lies on the disk now."""
    return _package_digest(
        "*.py", *(f"{part}/**/*.py" for part in ("schema", "hub", "measure", "operators", "summarize"))
    )


def _package_digest(*patterns: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in PACKAGE_FOLDER.glob(pattern)):
        digest.update(f"{path.relative_to(PACKAGE_FOLDER).as_posix()}\0{file_digest(path)}\n".encode())
    return digest.hexdigest()
