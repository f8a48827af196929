"""Log files of running processes: following them, and cutting those that are too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

HEAD_BYTES = 16 * 1024
"""Pages show the first 20,000 bytes of a long log, and so the line that replaces its middle."""
TAIL_BYTES = 2**20
_CHUNK_BYTES = 256 * 1024


def cut_log(log: Path) -> None:
    """Replace the middle of a long log by a line that states its size; whole lines are kept."""
    size = log.stat().st_size
    if size <= HEAD_BYTES + TAIL_BYTES:
        return
    with log.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(size - TAIL_BYTES)
        tail = file.read()
    head = head[: head.rfind(b"\n") + 1] or head
    tail = tail[tail.find(b"\n", 0, TAIL_BYTES // 2) + 1 :]
    missing = size - len(head) - len(tail)
    line = f"--- {missing:,} bytes are missing here: the log was too long ---\n".encode()
    log.write_bytes(head + (b"" if head.endswith(b"\n") else b"\n") + line + tail)


class Tail:
    """Passes on each whole line that is added to some files, for progress messages.

    If more is added at once than ``_CHUNK_BYTES``, only the end of it is passed on.
    """

    def __init__(self, paths: list[Path], on_line: Callable[[str], None]) -> None:
        self._positions = dict.fromkeys(paths, 0)
        self._on_line = on_line

    def look(self) -> None:
        """Pass on the lines that are new."""
        for path, position in self._positions.items():
            size = path.stat().st_size if path.exists() else 0
            if size <= position:
                continue
            start = max(position, size - _CHUNK_BYTES)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read(size - start)
            whole = data.rfind(b"\n") + 1
            self._positions[path] = start + whole if whole or start == position else size
            for line in data[:whole].decode("utf-8", errors="replace").split("\n")[:-1]:
                # A progress bar overwrites its line: show the last state.
                self._on_line(line.rstrip("\r").rpartition("\r")[2])
