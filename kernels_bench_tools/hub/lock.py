"""The file ``kernels.lock``: which commit and which files a reference means.

The cache records the answers of the hub in the same format.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.hub.reference import KernelReference

_CELL_SCRIPTS = (".kbt", "cells")


class LockedBuild(msgspec.Struct, kw_only=True):
    """A build as it was when it was downloaded."""

    digest: str
    """SHA-256 over its files."""
    files: dict[str, str]
    """Path within the build to SHA-256."""


class LockedKernel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a reference meant when it was resolved on the hub."""

    repo: str
    pin: str
    """Normalized version, constraint or revision."""
    commit: str
    snapshot: str = ""
    """Folder of the commit's files, relative to the hub's cache, with ``/``."""
    version: int | None = None
    trusted: str = ""
    """``publisher`` or ``allow-list``."""
    builds: dict[str, LockedBuild] = msgspec.field(default_factory=dict)
    """Build name to its files; machines of different kinds add theirs."""
    notes: list[str] = msgspec.field(default_factory=list)


class KernelsLock(msgspec.Struct, kw_only=True):
    """The content of a lock file."""

    format: int = 1
    kernels: list[LockedKernel] = msgspec.field(default_factory=list)

    def find(self, reference: KernelReference) -> LockedKernel | None:
        """Return the entry for ``reference``, by its pin or its commit; None if there is none."""
        for kernel in self.kernels:
            if kernel.repo == reference.repo and reference.pin in (kernel.pin, kernel.commit):
                return kernel
        return None

    def add(self, new: LockedKernel) -> None:
        """Add an entry in place of the one with its pin; builds of the same commit are kept."""
        for old in self.kernels:
            if (old.repo, old.commit) == (new.repo, new.commit):
                new.builds = {**old.builds, **new.builds}
        others = [old for old in self.kernels if (old.repo, old.pin) != (new.repo, new.pin)]
        self.kernels = sorted([*others, new], key=lambda kernel: (kernel.repo, kernel.pin))


def read_lock(path: Path) -> KernelsLock:
    """Read a lock file.

    Raises:
        KbtError: It cannot be read, or has another format.
    """
    remedy = "Write it with `kbt prefetch`"
    try:
        lock = msgspec.json.decode(path.read_bytes(), type=KernelsLock)
    except OSError as error:
        raise KbtError(str(path), f"cannot be read ({error.strerror})", "", remedy) from None
    except msgspec.DecodeError as error:
        expected = "a lock file of kbt (`kernels lock` writes another format)"
        raise KbtError(str(path), f"is not a lock file ({error})", expected, remedy) from None
    if lock.format != 1:
        raise KbtError(str(path), f"has the format {lock.format}", "format 1", remedy)
    return lock


def write_lock(path: Path, lock: KernelsLock) -> None:
    """Write a lock file atomically.

    Raises:
        KbtError: It cannot be written.
    """
    data = msgspec.json.format(msgspec.json.encode(lock, order="deterministic"), indent=1) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise KbtError(str(path), f"cannot be written ({error.strerror})") from None


def base_folder() -> Path:
    """Return the folder that relative paths refer to: the notebook's in a cell, else the current one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:
        folder = Path(script).absolute().parent
        if folder.parts[-2:] == _CELL_SCRIPTS:
            return folder.parents[1]
    return Path.cwd()
