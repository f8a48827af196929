"""The records that the processes of a measuring cell wrote: checked, completed after a failure, and merged."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.notebooks.project import is_pattern
from kernels_bench_tools.records.build import CellContext
from kernels_bench_tools.records.codec import ignore, read_heads, read_records, valid_lines, write_records
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.outcome import Outcome, outcome_of
from kernels_bench_tools.records.record import SCHEMA, Environment, Failure, Record, Status
from kernels_bench_tools.run.cache.entry import Draft, Entry, StoredResult


def check_records(folder: Path, outputs: Sequence[str], *, plain: bool = False, empty: bool = False) -> str:
    """Return what is wrong with the record files among the artifacts in ``folder``; empty if nothing is.

    ``plain`` is whether files may hold something else than records, and ``empty`` whether they may hold nothing.
    """
    for output in (output for output in outputs if output.endswith(".jsonl")):
        paths = sorted(folder.glob(output))
        if not paths:
            return f"wrote no {output}"
        for path in paths:
            name = path.relative_to(folder).as_posix()
            if (plain and is_plain(path)) or (empty and not path.stat().st_size):
                continue
            try:
                records = read_records(path, name)
            except RecordError as error:
                return f"{error.where} {error.what}"
            if not records:
                return f"{name} holds no record"
    return ""


def read_outcome(folder: Path) -> Outcome:
    """Return how the workloads in the artifacts of a cell, or of one of its processes, ended."""
    return outcome_of(
        record for path in sorted(folder.rglob("*.jsonl")) for record in read_records(path, on_problem=ignore)
    )


def add_failure(
    folder: Path,
    outputs: Sequence[str],
    context: CellContext,
    device: Device,
    status: Status,
    failure: Failure,
) -> None:
    """Append the reason of a failure to the cell's record file in ``folder``, and drop lines that are no records.

    The added record has no workload: it stands for all workloads that have no record. A file of something else stays.
    """
    output = next(output for output in outputs if output.endswith(".jsonl"))
    if is_pattern(output):
        name = f"{context.operator.rpartition('/')[2] or context.implementation}.jsonl"
        path = min(folder.glob(output), default=folder / name)
    else:
        path = folder / output
    if path.is_file() and is_plain(path):
        return
    runs = (head.run for head in read_heads(path) if head.run)
    record = Record(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        run=next(runs, None) or uuid.uuid4().hex,
        impl=context.implementation,
        tags={"family": context.family} if context.family else {},
        env=Environment(driver=device.driver, gpu=device.name if device.kind != "cpu" else ""),
        err=failure,
        schema=SCHEMA,
        op=context.operator,
        status=status,
        device=device,
        process=context.process,
        provenance=context.provenance(),
    )
    write_records(path, [record], before=valid_lines(path))


def merge_processes(draft: Draft, runs: Sequence[Entry], processes: int, seconds: float) -> StoredResult:
    """Merge the runs of a cell, in order, into one draft; return the result of the first that failed, if one did.

    Records of all processes are kept in the order of the processes; other outputs are those of the first.
    """
    folders = [run.artifacts for run in runs]
    _merge_records(draft.artifacts, folders)
    for path in folders[0].rglob("*"):
        if path.is_file() and path.suffix != ".jsonl":
            copy = draft.artifacts / path.relative_to(folders[0])
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    _merge_logs(draft.stdout, [run.stdout for run in runs], processes)
    _merge_logs(draft.stderr, [run.stderr for run in runs], processes)
    result = next((run.result for run in runs if run.result.status is not Status.OK), runs[0].result)
    transient = any(run.result.transient for run in runs)
    return msgspec.structs.replace(result, seconds=round(seconds, 3), transient=transient)


def _merge_records(target: Path, folders: Sequence[Path]) -> None:
    names = dict.fromkeys(
        path.relative_to(folder).as_posix() for folder in folders for path in sorted(folder.rglob("*.jsonl"))
    )
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sources = [folder / name for folder in folders if (folder / name).is_file()]
        if len(sources) == 1 or is_plain(sources[0]):
            shutil.copyfile(sources[0], path)
        else:
            path.write_bytes(b"".join(valid_lines(source) for source in sources))


def _merge_logs(path: Path, logs: Sequence[Path], processes: int) -> None:
    """Write the logs one after the other, separated by a line with the number of the process."""
    merged = b""
    for number, log in enumerate(logs, start=1):
        if number > 1:
            line_feed = b"" if not merged or merged.endswith(b"\n") else b"\n"
            merged += line_feed + f"--- process {number} of {processes}\n".encode()
        merged += log.read_bytes()
    if any(log.stat().st_size for log in logs):  # an empty log is not shown
        path.write_bytes(merged)
