"""Makes one result of the processes that measured one cell."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.run.cache.store import Draft, StoredResult
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.record_io import valid_lines


@dataclass(frozen=True)
class ProcessRun:
    """One process of a cell, ended, well or not."""

    draft: Draft
    """What it left; not yet an entry of the cache."""
    result: StoredResult


def join_runs(draft: Draft, runs: Sequence[ProcessRun], processes: int, seconds: float) -> StoredResult:
    """Put what the processes of a cell left into one draft; return how the cell ended.

    Records of all processes follow one another in the order of the processes. Other outputs are those of
    the first. The cell ended as the first process did that did not end well.

    Args:
        draft: The cell's own draft.
        runs: At least one process, in order.
        processes: How many there should have been.
        seconds: How long they took together.
    """
    _join_records(draft.artifacts, [run.draft.artifacts for run in runs])
    _copy_others(draft.artifacts, runs[0].draft.artifacts)
    join_logs(draft.stdout, [run.draft.stdout for run in runs], processes)
    join_logs(draft.stderr, [run.draft.stderr for run in runs], processes)
    told = next((run.result for run in runs if run.result.status is not Status.OK), runs[0].result)
    return msgspec.structs.replace(told, seconds=round(seconds, 3))


def join_logs(path: Path, logs: Sequence[Path], processes: int) -> None:
    """Write the logs one after the other, with a line before all but the first that says whose it is.

    Nothing is written where all are empty: an empty log is not shown.
    """
    if not any(log.stat().st_size for log in logs):
        return
    ended = True  # whether the last line has its line feed
    with path.open("wb") as file:
        for number, log in enumerate(logs, start=1):
            if number > 1:
                file.write(b"" if ended else b"\n")
                file.write(f"--- process {number} of {processes}\n".encode())
            with log.open("rb") as source:
                shutil.copyfileobj(source, file)
            ended = _ends_with_line_feed(log)


def _ends_with_line_feed(path: Path) -> bool:
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - 1))
        return size == 0 or file.read(1) == b"\n"


def _join_records(target: Path, folders: Sequence[Path]) -> None:
    names = dict.fromkeys(
        path.relative_to(folder).as_posix() for folder in folders for path in sorted(folder.rglob("*.jsonl"))
    )
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sources = [folder / name for folder in folders if (folder / name).is_file()]
        if len(sources) == 1:
            shutil.copyfile(sources[0], path)
        else:
            path.write_bytes(b"".join(valid_lines(source) for source in sources))


def _copy_others(target: Path, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".jsonl":
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
