"""The hub's cache on this machine: what it holds of a kernel, without asking anybody.

``kernels`` writes no ``refs/v1`` when it downloads version 1, and its own offline mode rejects a snapshot that
holds one build only; so what the hub answered is remembered beside the snapshots, and builds are read from
their folders.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub.lock import KernelsLock, LockedKernel, read_lock, write_lock
from kernels_bench_tools.hub.reference import Reference

MEMORY = "kbt-answers.json"
"""File in a kernel's folder of the cache: what the hub answered, in the form of a lock."""
_SHORTEST_COMMIT = 7


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit of a kernel."""

    commit: str
    folder: Path
    version: int | None = None
    """Major version, where the cache says which."""


def cache_folder() -> Path:
    """Return the folder that ``kernels`` downloads to."""
    from huggingface_hub import constants

    return Path(os.environ.get("KERNELS_CACHE") or constants.HF_HUB_CACHE).expanduser()


def kernel_folder(repo: str) -> Path:
    """Return where the cache keeps everything of a kernel."""
    return cache_folder() / f"kernels--{repo.replace('/', '--')}"


def snapshot_folder(repo: str, commit: str) -> Path:
    """Return where the cache keeps the files of a commit."""
    return kernel_folder(repo) / "snapshots" / commit


def downloaded_bytes(repo: str) -> int:
    """Return how many bytes of a kernel have arrived, those of unfinished files included."""
    total = 0
    try:
        for entry in os.scandir(kernel_folder(repo) / "blobs"):
            total += entry.stat().st_size
    except OSError:  # none yet, or one that has just got its final name
        pass
    return total


def find_snapshots(reference: Reference) -> list[Snapshot]:
    """Return the snapshots that ``reference`` may mean, the newest version first; empty for none."""
    repo = reference.repo
    named = _named_commits(repo)
    commits: list[tuple[str, int | None]]
    if not reference.revision:
        versions = {int(name[1:]): commit for name, commit in named.items() if re.fullmatch(r"v\d+", name)}
        wanted = sorted((version for version in versions if reference.admits(version)), reverse=True)
        commits = [(versions[version], version) for version in wanted]
    elif reference.revision in named:
        commits = [(named[reference.revision], None)]
    else:
        commits = [(commit, None) for commit in _abbreviated(repo, reference.revision)]
    found = [Snapshot(commit, snapshot_folder(repo, commit), version) for commit, version in commits]
    return [one for one in found if one.folder.is_dir()]


def cached_names(repo: str) -> list[str]:
    """Return the versions and branches of a kernel that the cache has."""
    named = _named_commits(repo)
    return sorted(name for name, commit in named.items() if snapshot_folder(repo, commit).is_dir())


def recall(repo: str) -> KernelsLock:
    """Return what the hub answered when it was asked for this kernel; empty if that is not known."""
    try:
        return read_lock(kernel_folder(repo) / MEMORY)
    except KbtError:
        return KernelsLock()


def remember(answer: LockedKernel) -> None:
    """Keep an answer of the hub for later processes. A cache that cannot be written to is no obstacle."""
    known = recall(answer.repo)
    known.add(answer)
    with suppress(KbtError):
        write_lock(kernel_folder(answer.repo) / MEMORY, known)


def missing_files(snapshot: Path, variant: str) -> list[str]:
    """Return the files of a build that should be there and are not, as far as the cache can tell."""
    folder = snapshot / "build" / variant
    # A link into the cache's blobs whose blob is gone exists for nobody but its own folder.
    missing = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.exists()}
    prefix = f"build/{variant}/"
    for name in _listed_files(snapshot):
        own = name.removeprefix(prefix)
        if name.startswith(prefix) and not name.endswith(".pyc") and not (folder / own).exists():
            missing.add(own)
    return sorted(missing)


def _named_commits(repo: str) -> dict[str, str]:
    """Return what the cache knows of branches, tags and versions: name to commit."""
    named = {}
    for kernel in recall(repo).kernels:
        named[kernel.pin] = kernel.commit
        if kernel.version is not None:
            named[f"v{kernel.version}"] = kernel.commit
    refs = kernel_folder(repo) / "refs"
    for path in sorted(refs.rglob("*")) if refs.is_dir() else []:
        if path.is_file():
            named.setdefault(path.relative_to(refs).as_posix(), path.read_text(encoding="utf-8").strip())
    return named


def _abbreviated(repo: str, commit: str) -> list[str]:
    """Return the snapshot that ``commit``, whole or its beginning, names without doubt."""
    folder = kernel_folder(repo) / "snapshots"
    if len(commit) < _SHORTEST_COMMIT or not re.fullmatch(r"[0-9a-f]+", commit) or not folder.is_dir():
        return []
    found = [path.name for path in folder.iterdir() if path.name.startswith(commit)]
    return found if len(found) == 1 else []


def _listed_files(snapshot: Path) -> list[str]:
    """Return the files of the commit as the hub listed them when it was downloaded; empty if it did not."""
    listing = snapshot.parent.parent / "trees" / f"{snapshot.name}.json"
    try:
        return list(json.loads(listing.read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
