"""Tells when something that a build reads has changed on the disk.

What was written is found by comparing the files with those of the last look: atomic saves, renames, and folders
that came and went look the same then, and an event too many is no change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.errors import ProjectError

_SKIPPED_FOLDERS = {"node_modules", "__pycache__"}
_LEFTOVERS = ("~", ".pyc", ".swp", ".swx", ".tmp", ".part")
"""Ends of the names that editors and interpreters use for themselves."""
_QUIET_MS, _LONGEST_MS = 100, 1600
"""Writers are given this long to finish: until nothing has changed for the first, at most the second."""
_SECOND_LOOK_MS = 1000

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class _Look:
    """The folders and files below a root at one moment."""

    folders: frozenset[str]
    files: dict[str, Stamp]


class Watcher:
    """Watches a folder from the moment it is made; hidden files and folders, environments and output never.

    Args:
        root: The folder.
        is_output: Says of a folder whether builds write it, so that it is left alone with all that is in it.
    """

    def __init__(self, root: Path, is_output: Callable[[Path], bool] = lambda _: False) -> None:
        from watchfiles import watch  # takes a tenth of a second, which only those who watch pay

        self._watch = watch
        self.root = root
        self._is_output = is_output
        self._seen = self._look()

    def changes(self, stop: threading.Event) -> Iterator[list[str]]:
        """Yield the paths within the root that were written or removed, sorted, whenever there are some.

        Args:
            stop: Ends the watching when it is set.

        Raises:
            ProjectError: The system does not let it watch.
        """
        while not stop.is_set():
            try:
                yield from self._until_folders_change(stop)
            except FileNotFoundError:  # a folder went away between looking and watching
                continue
            except OSError as error:
                remedy = "Raise fs.inotify.max_user_watches, or set WATCHFILES_FORCE_POLLING=1"
                raise ProjectError(str(self.root), f"cannot be watched: {error}", "", remedy) from error

    def _until_folders_change(self, stop: threading.Event) -> Iterator[list[str]]:
        watched = self._look().folders
        # Each folder by itself: watching whole trees would take in environments with all their packages.
        events = self._watch(
            *sorted(watched),
            watch_filter=None,
            recursive=False,
            step=_QUIET_MS,
            debounce=_LONGEST_MS,
            rust_timeout=_SECOND_LOOK_MS,
            yield_on_timeout=True,
            stop_event=stop,
        )
        first = True
        for event in events:
            # Without an event there is one look only: for what happened before the watching began.
            if event or first:
                first = False
                changed = self._compare()
                if changed:
                    yield changed
                if self._seen.folders != watched:
                    return

    def _compare(self) -> list[str]:
        before, self._seen = self._seen, self._look()
        return sorted({path for path, _ in before.files.items() ^ self._seen.files.items()})

    def _look(self) -> _Look:
        folders, files = set[str](), dict[str, Stamp]()
        for folder, inside, names in os.walk(self.root):
            here = Path(folder)
            folders.add(folder)
            inside[:] = [name for name in inside if self._is_watched(here / name)]
            for name in names:
                if not name.startswith((".", "#")) and not name.endswith(_LEFTOVERS):
                    stamp = _stamp(here / name)
                    if stamp is not None:
                        files[(here / name).relative_to(self.root).as_posix()] = stamp
        return _Look(frozenset(folders), files)

    def _is_watched(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS:
            return False
        return not (folder / "pyvenv.cfg").exists() and not self._is_output(folder)


def _stamp(path: Path) -> Stamp | None:
    """Return what changes when a file is written or replaced; None if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
