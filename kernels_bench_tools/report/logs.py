"""What cells printed: all of it where it is short, its beginning and end where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.report.words import plain_text
from kernels_bench_tools.schema.build import CellRun

MAX_BYTES = 40_000
"""What a page shows of a log at most; the whole of a longer one lies beside it as a file."""


@dataclass(frozen=True)
class Log:
    """A log as a page shows it."""

    name: str
    text: str
    omitted: int
    """Bytes left out of the middle."""


def log_files(root: Path, cell: CellRun) -> dict[str, Path]:
    """Return the logs that a cell left, by the names of their streams."""
    named = {"stdout": cell.stdout, "stderr": cell.stderr, "environment": cell.environment_log}
    return {name: root / path for name, path in named.items() if path and (root / path).is_file()}


def is_long(file: Path) -> bool:
    """Return whether a page shows only a part of this log."""
    return file.stat().st_size > MAX_BYTES


def read_log(name: str, file: Path) -> Log:
    """Return what a page shows of a log, decoded with replacement, without terminal codes."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= MAX_BYTES:
            return Log(name, _decoded(stream.read()), 0)
        head = stream.read(MAX_BYTES // 2)
        stream.seek(size - MAX_BYTES // 2)
        tail = stream.read()
    return Log(name, f"{_decoded(head)}\n…\n{_decoded(tail)}", size - MAX_BYTES)


def _decoded(data: bytes) -> str:
    return plain_text(data.decode(errors="replace"))
