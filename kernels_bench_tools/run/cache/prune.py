"""Keeps the cell cache small, and looks into it: how large, how old, and whether all of it is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels_bench_tools.run.cache.checksums import DamagedEntryError, folder_size
from kernels_bench_tools.run.cache.entry import read_entry
from kernels_bench_tools.run.cache.store import CellCache, is_process


@dataclass(frozen=True)
class StoredEntry:
    """An entry, as far as its size and age go."""

    key: str
    size: int
    """Bytes of its files."""
    used: float
    """When a build last showed it, or made it: seconds since 1970."""
    shown: bool
    """Whether it is a cell's last result, which the report shows."""

    @property
    def is_kept(self) -> bool:
        """Whether it is never removed: it is shown, or an interrupted session will go on from it."""
        return self.shown or is_process(self.key)


def list_entries(cache: CellCache) -> list[StoredEntry]:
    """Return all entries, least recently used first."""
    shown = cache.shown()
    found = [
        StoredEntry(path.name, folder_size(path), path.stat().st_mtime, path.name in shown)
        for path in cache.entries()
    ]
    return sorted(found, key=lambda entry: (entry.used, entry.key))


def prune_cache(cache: CellCache, limit: int) -> list[StoredEntry]:
    """Remove the least recently used entries until all together fit, and return them.

    What the report shows is never removed, even if it alone is larger.

    Args:
        cache: The cache of a project whose lock is held.
        limit: Bytes.
    """
    entries = list_entries(cache)
    excess = sum(entry.size for entry in entries) - limit
    removed = []
    for entry in entries:
        if excess <= 0:
            break
        if not entry.is_kept:
            cache.drop(entry.key)
            removed.append(entry)
            excess -= entry.size
    return removed


def verify_cache(cache: CellCache, look: Callable[[int, int], None]) -> dict[str, str]:
    """Digest every entry again, and remove those that are damaged or of another version.

    Args:
        cache: The cache of a project whose lock is held.
        look: Told how many of how many entries have been digested.

    Returns:
        For each removed entry, named by its cell where that is known, what is wrong with it.
    """
    removed = {}
    folders = cache.entries()
    for number, folder in enumerate(folders, start=1):
        flaw = ""
        try:
            if read_entry(folder) is None:
                flaw = "made by another version of kbt"
        except DamagedEntryError as error:
            flaw = str(error)
        if flaw:
            removed[cache.owner(folder.name) or f"entry {folder.name[:12]}"] = flaw
            cache.drop(folder.name)
        look(number, len(folders))
    return removed
