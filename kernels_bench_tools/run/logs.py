"""Logs of cells: followed, cut, read for failures, and freed of local paths."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernels_bench_tools.records.record import Failure
from kernels_bench_tools.run.environment.variables import home_folder, user_cache
from kernels_bench_tools.text.hiding import without_private, without_styles

HEAD_BYTES = 16 * 1024
"""Pages show the first 20,000 bytes of a long log, and so the line that replaces its middle."""
TAIL_BYTES = 2**20
_CHUNK_BYTES = 256 * 1024


def printed(file: int) -> bytes:
    """Return what is in an open file; the middle of a long log is replaced by a line that states its size; lines are whole."""
    size = os.fstat(file).st_size
    if size <= HEAD_BYTES + TAIL_BYTES:
        return os.pread(file, size, 0)
    head, tail = os.pread(file, HEAD_BYTES, 0), os.pread(file, TAIL_BYTES, size - TAIL_BYTES)
    head = head[: head.rfind(b"\n") + 1] or head
    tail = tail[tail.find(b"\n", 0, TAIL_BYTES // 2) + 1 :]
    missing = size - len(head) - len(tail)
    line = f"--- {missing:,} bytes are missing here: the log was too long ---\n".encode()
    return head + (b"" if head.endswith(b"\n") else b"\n") + line + tail


class Tail:
    """Passes on each whole line that is added to some open files, for progress messages.

    If more is added at once than ``_CHUNK_BYTES``, only the end of it is passed on.
    """

    def __init__(self, files: Sequence[int], on_line: Callable[[str], None]) -> None:
        self._positions = dict.fromkeys(files, 0)
        self._on_line = on_line

    def look(self) -> None:
        for file, position in self._positions.items():
            size = os.fstat(file).st_size
            if size <= position:
                continue
            start = max(position, size - _CHUNK_BYTES)
            data = os.pread(file, size - start, start)
            whole = data.rfind(b"\n") + 1
            self._positions[file] = start + whole if whole or start == position else size
            for line in data[:whole].decode("utf-8", errors="replace").split("\n")[:-1]:
                # A progress bar overwrites its line: show the last state.
                self._on_line(line.rstrip("\r").rpartition("\r")[2])


_REASON_LENGTH = 300
_TAIL_BYTES = 64 * 1024
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<msg>.*))?")
_FATAL = "Fatal Python error"
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")
_OUT_OF_MEMORY_MESSAGES = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "not enough memory: you tried to allocate",  # torch, on the CPU
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
)


def hide_paths(log: Path, folders: Mapping[Path, str]) -> None:
    """Replace folders in a file, home folders, caches of this user, and credentials in URLs."""
    data = log.read_bytes()
    hidden = _public(data, folders)
    if hidden != data:
        log.write_bytes(hidden)


def public(text: str, folders: Mapping[Path, str] | None = None) -> str:
    """Return a message as it may be published: as :func:`hide_paths` leaves a log."""
    return _public(text.encode(errors="backslashreplace"), folders or {}).decode()


def _public(text: bytes, folders: Mapping[Path, str]) -> bytes:
    """Return a text with folders replaced, by ``~`` for example, since logs are published and compared.

    With an empty replacement, paths become relative to the folder.
    """
    for folder, name in {**folders, user_cache().parent: "~/.cache", home_folder(os.environ): "~"}.items():
        if folder == folder.parent:  # the home of a user without one
            continue
        path = re.escape(os.fsencode(folder))
        inside, itself = (f"{name}/".encode(), name.encode()) if name else (b"", b".")
        text = re.sub(path + rb"/(?=[\w.])", lambda _, to=inside: to, text)  # type: ignore[misc]
        text = re.sub(path + rb"(?![\w.-])", lambda _, to=itself: to, text)  # type: ignore[misc]
    return without_private(text)


def failure_from_log(log: Path) -> Failure:
    """Return the exception of the last traceback in a standard error; without one, the last line that is not empty."""
    lines = [line.rstrip() for line in _tail(log) if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    if starts:
        raised = [line for line in lines[starts[-1] + 1 :] if not line[0].isspace()][:1]
    else:  # a syntax error has no traceback
        raised = [line for line in lines[-1:] if line.split(":")[0].endswith("Error")]
    match = _EXCEPTION.fullmatch(raised[0]) if raised else None
    if match:
        return Failure(type=match["type"].rpartition(".")[2], msg=_shortened(match["msg"] or ""))
    return Failure(type="", msg=_shortened(lines[-1].strip() if lines else ""))


def is_out_of_memory(failure: Failure) -> bool:
    return failure.type in _OUT_OF_MEMORY or any(text in failure.msg for text in _OUT_OF_MEMORY_MESSAGES)


def is_disk_full(failure: Failure) -> bool:
    return any(os.strerror(number) in failure.msg for number in (errno.ENOSPC, errno.EDQUOT))


def last_line(logs: Sequence[Path]) -> str:
    """Return the last line in the logs of a process, of the first log that has one; empty if none has.

    After a crash, this is the line of code where it happened, if Python printed it.
    """
    for log in logs:
        lines = [line.strip() for line in _tail(log) if line.strip()]
        fatal = [number for number, line in enumerate(lines) if line.startswith(_FATAL)]
        if fatal:
            place = next((line for line in lines[fatal[-1] :] if line.startswith("File ")), lines[fatal[-1]])
            return _shortened(place)
        if lines:
            return _shortened(lines[-1])
    return ""


def _tail(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return without_styles(text).replace("\r", "\n").split("\n")


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 1] + "…"
