"""Hub kernels in files and pipes between ``kbt``, ``kbt hub build``'s process and cells."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.records.settings import find_settings
from kernels_bench_tools.text.tables import grouped

LOCK_FILE = "kernels.lock"
LOCK_VARIABLE = "KBT_KERNELS_LOCK"
BUILDS_FOLDER = "hub-builds"
BUILDS_VARIABLE = "KBT_HUB_BUILDS"
SOURCE_BUILD = "source build"
"""Origin of a kernel that was built from source."""
SOURCE_BUILD_FILE = "source-build.json"
LEFT_OUT = "was left out of this build from source"
"""Part of the message of a function whose file was not compiled."""
_ROOT_MARKS = ("pyproject.toml", ".git")


def find_lock(folder: Path) -> Path | None:
    """Return the lock in ``KBT_KERNELS_LOCK``, else the nearest one from this folder up to the project's root, or None."""
    if named := os.environ.get(LOCK_VARIABLE):
        return Path(named)
    for parent in (folder, *folder.parents):
        if (parent / LOCK_FILE).is_file():
            return parent / LOCK_FILE
        if _is_marked(parent):
            break
    return None


def _is_marked(folder: Path) -> bool:
    """Return whether a folder looks like the root of a project."""
    return any((folder / mark).exists() for mark in _ROOT_MARKS)


class BuildRequest(msgspec.Struct, kw_only=True, frozen=True):
    sources: list[str]
    output: str
    backend: str = ""
    """``cuda`` or ``cpu``; empty for what torch was built for."""
    archs: list[str] = []
    """CUDA compute capabilities; empty for those of this GPU."""
    only: list[str] = []
    """Patterns of CUDA files to compile; empty for all."""
    commit: str = ""
    """Commit of sources outside a Git repository."""
    jobs: int = 1


class SourceBuild(msgspec.Struct, kw_only=True, omit_defaults=True):
    repository: str
    commit: str
    source: str
    """Folder of the source on the machine that compiled it."""
    source_digest: str
    dirty: bool | None = None
    """Whether files differed from the commit; None if that is unknown."""
    torch: str
    archs: list[str] = []
    compilers: list[str] = []
    flags: dict[str, list[str]] = {}
    """Flags of each component, without include folders."""
    left_out: list[str] = []
    """Components and files that were not compiled, and why."""


def builds_folder(start: Path) -> Path:
    """Return the folder of the builds that ``kbt hub build`` made: ``KBT_HUB_BUILDS``, else that of ``start``'s project.

    The project's is ``hub_builds`` in its ``[tool.kbt]``, a folder in its root; the variable may name any.
    """
    nearest = next(filter(_is_marked, (start, *start.parents)), start)
    root, settings = find_settings(start) or (nearest, {})
    if named := os.environ.get(BUILDS_VARIABLE):
        return root / Path(named).expanduser()
    where = f"{root / 'pyproject.toml'}: [tool.kbt] hub_builds"
    return path_below(root, str(settings.get("hub_builds", BUILDS_FOLDER)), where=where)


def described_builds(folder: Path) -> dict[str, list[Path]]:
    """Return the metadata of the finished builds in a folder of source builds, by the name of the kernel."""
    paths = sorted(folder.glob("*/*/build/*/metadata.json"))
    return grouped(("/".join(path.parts[-5:-3]), path) for path in paths)
