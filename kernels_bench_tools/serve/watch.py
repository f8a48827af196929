"""Find out which files of a folder have changed, by comparing them at intervals.

Polling needs no limits of the system to be raised, works on network drives, and sees a file that was replaced by
another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_SKIPPED_FOLDERS = {"node_modules", "__pycache__"}
_TEMPORARY = ("~", ".pyc", ".swp", ".swx", ".tmp", ".part")
"""Suffixes of files that editors and interpreters write for themselves."""
_INTERVAL_S = 0.5
_SETTLE_S, _LONGEST_S = 0.1, 1.6
"""Writers may finish: wait until nothing has changed for the first, but no longer than the second."""

Snapshot = dict[str, tuple[int, int, int]]
"""Path within the folder to modification time, size and inode."""


class Watcher:
    """Report changed files of a folder, counted from the moment of construction.

    Hidden files and folders, virtual environments and output are ignored.

    Args:
        root: The folder.
        is_output: Whether a folder below it is written by builds, and is to be ignored.
    """

    def __init__(self, root: Path, is_output: Callable[[Path], bool] = lambda _: False) -> None:
        self.root = root
        self._is_output = is_output
        self._seen = self._snapshot()

    def wait(self) -> list[str]:
        """Return the paths of files written or removed since the last call, sorted; wait until there are any."""
        while (now := self._snapshot()) == self._seen:
            time.sleep(_INTERVAL_S)
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            time.sleep(_SETTLE_S)
            before, now = now, self._snapshot()
            if now == before:
                break
        changed = sorted({path for path, _ in self._seen.items() ^ now.items()})
        self._seen = now
        return changed

    def _snapshot(self) -> Snapshot:
        files: Snapshot = {}
        for folder, inside, names in os.walk(self.root):
            here = Path(folder)
            inside[:] = [name for name in inside if self._is_watched(here / name)]
            for name in names:
                if name.startswith((".", "#")) or name.endswith(_TEMPORARY):
                    continue
                try:
                    found = (here / name).stat()
                except OSError:  # removed meanwhile, or a dangling link
                    continue
                path = (here / name).relative_to(self.root).as_posix()
                files[path] = (found.st_mtime_ns, found.st_size, found.st_ino)
        return files

    def _is_watched(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS:
            return False
        return not (folder / "pyvenv.cfg").exists() and not self._is_output(folder)
