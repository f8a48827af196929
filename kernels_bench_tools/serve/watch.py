"""Watching a folder by comparing its files at intervals, which needs no system limits and works on network drives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_SKIPPED_FOLDERS = {"node_modules", "__pycache__"}
_TEMPORARY = ("~", ".pyc", ".swp", ".swx", ".tmp", ".part")
"""Suffixes of files that editors and interpreters write for themselves."""
_INTERVAL_S, _SETTLE_S = 0.5, 0.2


class Watcher:
    """Reports changed files below ``root``, counted from the moment of construction.

    Hidden files and folders, virtual environments and folders that ``is_output`` are ignored.
    """

    def __init__(self, root: Path, is_output: Callable[[Path], bool] = lambda _: False) -> None:
        self.root = root
        self._is_output = is_output
        self._seen = self._snapshot()

    def wait(self) -> list[str]:
        """Return the paths of files written or removed since the last call, sorted; wait until there are any."""
        while True:
            while self._snapshot() == self._seen:
                time.sleep(_INTERVAL_S)
            time.sleep(_SETTLE_S)  # a program may be writing several files
            before, self._seen = self._seen, self._snapshot()
            if before != self._seen:
                return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _snapshot(self) -> dict[str, tuple[int, int, int]]:
        """Return the path of each file within the folder, with its modification time, size and inode."""
        files = {}
        for parent, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if self._is_watched(Path(parent, name))]
            for name in names:
                if name.startswith((".", "#")) or name.endswith(_TEMPORARY):
                    continue
                path = Path(parent, name)
                try:
                    status = path.stat()
                except OSError:  # removed meanwhile, or a dangling link
                    continue
                key = path.relative_to(self.root).as_posix()
                files[key] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return files

    def _is_watched(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS:
            return False
        return not (folder / "pyvenv.cfg").exists() and not self._is_output(folder)
