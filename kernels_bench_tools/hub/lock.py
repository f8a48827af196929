"""Which commit and which files a reference stood for: in a project's lock, and in the cache's own memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.hub.reference import Reference

VARIABLE = "KBT_KERNELS_LOCK"
FILE = "kernels.lock"
_CELL_SCRIPTS = (".kbt", "cells")
_ROOT_MARKS = ("pyproject.toml", ".git")


class LockedBuild(msgspec.Struct, kw_only=True):
    """A build as it was when it was downloaded."""

    digest: str
    """SHA-256 over its files."""
    files: dict[str, str]
    """Path within the build to SHA-256."""


class LockedKernel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a reference stood for when the hub was asked."""

    repo: str
    pin: str
    """Version, constraint or revision, in one spelling."""
    commit: str
    snapshot: str = ""
    """Folder that holds the commit's files, within the hub's cache, with ``/``."""
    version: int | None = None
    trusted: str = ""
    """``publisher`` or ``allow-list``."""
    builds: dict[str, LockedBuild] = msgspec.field(default_factory=dict)
    """Name of a build to its files; machines of different kinds add theirs."""
    notes: list[str] = msgspec.field(default_factory=list)


class KernelsLock(msgspec.Struct, kw_only=True):
    """A file of locked kernels."""

    format: int = 1
    kernels: list[LockedKernel] = msgspec.field(default_factory=list)

    def find(self, reference: Reference) -> LockedKernel | None:
        """Return what ``reference`` stands for here; a whole commit also by another name of it."""
        for kernel in self.kernels:
            if kernel.repo == reference.repo and reference.pin in (kernel.pin, kernel.commit):
                return kernel
        return None

    def add(self, new: LockedKernel) -> None:
        """Put ``new`` in place of what its pin stood for; builds of the same commit are kept."""
        for old in self.kernels:
            if (old.repo, old.commit) == (new.repo, new.commit):
                new.builds = {**old.builds, **new.builds}
        others = [old for old in self.kernels if (old.repo, old.pin) != (new.repo, new.pin)]
        self.kernels = sorted([*others, new], key=lambda kernel: (kernel.repo, kernel.pin))


def read_lock(path: Path) -> KernelsLock:
    """Return the lock that ``path`` holds.

    Raises:
        KbtError: It cannot be read, or is no lock of ours.
    """
    remedy = "Write it with `kbt prefetch`"
    try:
        lock = msgspec.json.decode(path.read_bytes(), type=KernelsLock)
    except OSError as error:
        raise KbtError(str(path), f"cannot be read ({error.strerror})", "", remedy) from None
    except msgspec.DecodeError as error:
        expected = "a lock of kbt (that of `kernels lock` is another one)"
        raise KbtError(str(path), f"is not a lock of kernels ({error})", expected, remedy) from None
    if lock.format != 1:
        raise KbtError(str(path), f"has the format {lock.format}", "format 1", remedy)
    return lock


def write_lock(path: Path, lock: KernelsLock) -> None:
    """Write ``lock`` to ``path``, atomically.

    Raises:
        KbtError: It cannot be written.
    """
    data = msgspec.json.format(msgspec.json.encode(lock, order="deterministic"), indent=1) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise KbtError(str(path), f"cannot be written ({error.strerror})") from None


def find_lock() -> Path | None:
    """Return the lock that holds here, if there is one.

    It is what ``KBT_KERNELS_LOCK`` names, else ``kernels.lock`` in the notebook's folder or the nearest one above
    it, as far as the project's root (the first folder with a ``pyproject.toml`` or ``.git``).
    """
    named = os.environ.get(VARIABLE, "")
    if named:
        return Path(named)
    folder = base_folder()
    for one in (folder, *folder.parents):
        if (one / FILE).is_file():
            return one / FILE
        if any((one / mark).exists() for mark in _ROOT_MARKS):
            break
    return None


def base_folder() -> Path:
    """Return the folder from which a notebook's relative paths count: its own; elsewhere the current one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:
        folder = Path(script).absolute().parent
        if folder.parts[-2:] == _CELL_SCRIPTS:
            return folder.parents[1]
    return Path.cwd()
