"""Listing and pruning the cell cache."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_bench_tools.run.cache.entry import folder_size
from kernels_bench_tools.run.cache.store import CellCache, is_process


@dataclass(frozen=True)
class StoredEntry:
    """Size and age of an entry."""

    key: str
    size: int
    """Bytes of its files."""
    used: float
    """When a build last used it, in seconds since 1970."""
    shown: bool
    """Whether it is the last result of a cell, which the report shows."""

    @property
    def is_kept(self) -> bool:
        """Whether it is never removed: the report shows it, or an interrupted session can be resumed from it."""
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
    """Remove the least recently used entries until the total size is at most ``limit`` bytes; return them.

    Entries that are kept count, but are not removed. The lock of the project must be held.
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
