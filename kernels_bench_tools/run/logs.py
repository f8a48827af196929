"""Logs of cells: followed, cut, read for failures, and freed of local paths."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from kernels_bench_tools.file_io import open_regular, read_file, write_atomically
from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.records.record import Failure
from kernels_bench_tools.run.environment.variables import home_folder, user_cache
from kernels_bench_tools.text.hiding import without_private, without_styles

HEAD_BYTES = 16 * 1024
"""Pages show the first 20,000 bytes of a long log, and so the line that replaces its middle."""
TAIL_BYTES = 2**20
_CHUNK_BYTES = 256 * 1024


@dataclass
class Logs:
    """What a process prints: into files without a name, which no process can replace, and at its end into its logs.

    A process that is started again continues them.
    """

    stderr: Path
    stdout: Path | None = None
    """None for no log."""
    on_line: Callable[[str], None] = lambda _: None
    """Called with each whole line; if more than ``_CHUNK_BYTES`` are added at once, with the last ones."""
    hidden: Mapping[Path, str] | None = None
    """What is replaced, see :func:`hide_paths`; None to hide nothing."""
    make_folder: Callable[[], object] = lambda: None
    """Makes the logs' folder again if a cell has removed it."""
    texts: list[bytes] = field(default_factory=lambda: [b"", b""], init=False)
    """What was printed to stdout and stderr; the middle of a long text is replaced by a line that states its size."""
    _positions: dict[int, int] = field(default_factory=dict, init=False)
    """By open file, how far its lines have been passed on."""

    @contextmanager
    def opened(self) -> Iterator[tuple[int, int]]:
        """Yield the open files for stdout and stderr of a process; write the logs at the end."""
        folder = self.stderr.parent
        with TemporaryFile(dir=folder) as out, TemporaryFile(dir=folder) as err:
            files = out.fileno(), err.fileno()
            self._positions = dict.fromkeys(files, 0)
            for file in files:  # since programs may open the streams again by name
                fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
            try:
                yield files
            finally:
                self.follow()
                self.make_folder()
                for number, (file, log) in enumerate(zip(files, (self.stdout, self.stderr), strict=True)):
                    text = self.texts[number] = self.texts[number] + _printed(file)
                    if log is not None:
                        remove_tree(log, log.parent)  # a cell may have put a folder or FIFO there
                        text = text if self.hidden is None else _public(text, self.hidden)
                        write_atomically(log, text, sync=False)

    def follow(self) -> None:
        """Pass on the lines that were added."""
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
                self.on_line(line.rstrip("\r").rpartition("\r")[2])


def _printed(file: int) -> bytes:
    """Return what is in an open file; of a long log, whole lines from its start and its end."""
    size = os.fstat(file).st_size
    if size <= HEAD_BYTES + TAIL_BYTES:
        return os.pread(file, size, 0)
    head, tail = os.pread(file, HEAD_BYTES, 0), os.pread(file, TAIL_BYTES, size - TAIL_BYTES)
    head = head[: head.rfind(b"\n") + 1] or head
    tail = tail[tail.find(b"\n", 0, TAIL_BYTES // 2) + 1 :]
    missing = size - len(head) - len(tail)
    line = f"--- {missing:,} bytes omitted: the log is too long ---\n".encode()
    return head + (b"" if head.endswith(b"\n") else b"\n") + line + tail


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
    data = read_file(log)
    hidden = _public(data, folders)
    if hidden != data:
        write_atomically(log, hidden, sync=False)


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
    with open_regular(log) as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return without_styles(text).replace("\r", "\n").split("\n")


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 1] + "…"
