"""Hub kernels in files and pipes between ``kbt``, ``kbt prefetch``'s process and cells."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

LOCK_FILE = "kernels.lock"
LOCK_VARIABLE = "KBT_KERNELS_LOCK"
_ROOT_MARKS = ("pyproject.toml", ".git")


class KernelRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The arguments of a call of ``get_kernel``."""

    reference: str | dict[str, str]
    version: int | str | None = None
    revision: str | None = None
    trust: list[str] = msgspec.field(default_factory=list)


class FetchedKernel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How a request ended."""

    reference: str
    status: str
    reason: str = ""
    commit: str = ""
    variant: str = ""
    notes: list[str] = msgspec.field(default_factory=list)


def find_lock(folder: Path) -> Path | None:
    """Return the lock in ``KBT_KERNELS_LOCK``, else the nearest one from this folder up to the project's root, or None."""
    if named := os.environ.get(LOCK_VARIABLE):
        return Path(named)
    for one in (folder, *folder.parents):
        if (one / LOCK_FILE).is_file():
            return one / LOCK_FILE
        if any((one / mark).exists() for mark in _ROOT_MARKS):
            break
    return None
