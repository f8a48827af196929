"""Follows what a running process prints into its log files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_CHUNK = 256 * 1024


class Tail:
    """Hands on each whole line that has been added to some files since it was last asked.

    Of output that comes faster than it is looked at, only the last part is handed on: it is shown to
    people, and the files have it all.
    """

    def __init__(self, paths: list[Path], hand_on: Callable[[str], None]) -> None:
        self._read = dict.fromkeys(paths, 0)
        self._hand_on = hand_on

    def look(self) -> None:
        """Hand on what is new."""
        for path, read in self._read.items():
            size = path.stat().st_size if path.exists() else 0
            if size <= read:
                continue
            start = max(read, size - _CHUNK)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read(size - start)
            whole = data.rfind(b"\n") + 1
            self._read[path] = start + whole if whole or start == read else size
            for line in data[:whole].decode("utf-8", errors="replace").split("\n")[:-1]:
                # A progress bar writes over itself; what it says last is what is left to see.
                self._hand_on(line.rstrip("\r").rpartition("\r")[2])
