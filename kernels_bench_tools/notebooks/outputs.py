"""What a cell leaves behind: the files that are kept, and what its logs say."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kernels_bench_tools.notebooks.paths import is_pattern, matches
from kernels_bench_tools.records import Failure

_REASON_LENGTH = 300
_TAIL_BYTES = 64 * 1024
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<msg>.*))?")
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")


def collect_outputs(folder: Path, outputs: Sequence[str], artifacts: Path) -> list[str]:
    """Copy what a cell wrote into ``artifacts``; return those of ``outputs`` that it did not write.

    Only regular files within its folder are kept, never links: those that ``outputs`` names (globs
    included), or all that are not hidden if it names none.
    """
    written = sorted(_written(folder))
    for name in written:
        if not outputs or any(matches(name, output) for output in outputs):
            target = artifacts / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)
    return [output for output in outputs if not is_pattern(output) and output not in written]


def _written(folder: Path) -> Iterator[str]:
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in files:
            path = Path(here) / name
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def hide_paths(log: Path, places: Mapping[Path, str]) -> None:
    """Do to a log file what :func:`without_paths` does to text."""
    data = log.read_bytes()
    hidden = without_paths(data, places)
    if hidden != data:
        log.write_bytes(hidden)


def without_paths(text: bytes, places: Mapping[Path, str]) -> bytes:
    """Return a text without paths of this machine, since logs are published and compared.

    Args:
        text: The text.
        places: Folder to what stands for it, such as ``~``; with an empty name, paths count from it.
    """
    for place, name in places.items():
        path = re.escape(os.fsencode(place))
        inside, itself = (f"{name}/".encode(), name.encode()) if name else (b"", b".")
        text = re.sub(path + rb"/(?=[\w.])", lambda _, to=inside: to, text)  # type: ignore[misc]
        text = re.sub(path + rb"(?![\w.-])", lambda _, to=itself: to, text)  # type: ignore[misc]
    return text


def failure_from_log(log: Path) -> Failure:
    """Return what the standard error of a failed process says: the exception of its last traceback.

    Without a traceback it is the last line that is not empty.
    """
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
    """Return whether a process failed for want of memory."""
    return failure.type in _OUT_OF_MEMORY or "CUDA out of memory" in failure.msg


def _tail(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return _ANSI.sub("", text).replace("\r", "\n").split("\n")


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 1] + "…"
