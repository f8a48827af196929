"""Runs one cell, and says how it ended.

A cell runs in an empty folder of its own, as a session of its own, with its output straight into files.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.run.cache.store import Draft, StoredResult
from kernels_bench_tools.run.cell_outputs import Collected, collect_outputs, open_folder
from kernels_bench_tools.run.environment.base import CellEnvironment
from kernels_bench_tools.run.environment.variables import passed_variables
from kernels_bench_tools.run.failed_records import add_failure, check_records
from kernels_bench_tools.run.limits import CellPolicy, readable_size
from kernels_bench_tools.run.log_text import (
    failure_from_log,
    hide_paths,
    is_out_of_memory,
    last_words,
)
from kernels_bench_tools.run.process.memory import default_memory_limit
from kernels_bench_tools.run.process.reaper import reaper
from kernels_bench_tools.run.process.run import LOG_LIMIT, Exit, Processes, never
from kernels_bench_tools.schema.build import CONTEXT_VARIABLE, CellContext
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Failure, Status

DEFAULT_TIMEOUT_SECONDS = 900
"""For cells without ``timeout=``. uvnote's 300 s are too few for a first compilation of every workload
with autotuning; much more would let one cell that hangs hold a device for the better part of a build."""
_TOLD_REFUSED = 10
_SAID_WHOLE = {"Flood", "Resolution", "MemoryLimit", "SIGABRT", "SIGKILL"}
"""Failures whose message needs no type before it."""


@dataclass(frozen=True)
class CellTask:
    """A cell that is ready to run."""

    name: str
    cell: Cell
    context: CellContext
    device: Device
    draft: Draft
    """Where everything that it leaves is put."""
    hidden: dict[Path, str]
    """Folders whose paths are replaced in its logs."""
    policy: CellPolicy = CellPolicy()  # noqa: RUF009 - it cannot be changed
    """What it may use."""


def run_cell(
    task: CellTask,
    python: str,
    script: Path,
    environment: CellEnvironment,
    tell: Callable[[Path], dict[str, str]],
    processes: Processes,
    watch: Callable[[], None],
    *,
    cancelled: Callable[[], bool] = never,
) -> StoredResult:
    """Run a cell to its end, and put what it leaves into its draft.

    Args:
        task: The cell.
        python: The interpreter of its environment.
        script: Its code.
        environment: Where it runs.
        tell: Given a folder, writes there what the cell is told and returns the variables for it.
        processes: The build's processes.
        watch: Called now and then while it runs.
        cancelled: Asked now and then while it runs; once it says yes, the cell is ended.

    Raises:
        CancelledCellError: It was cancelled.
        InterruptedBuildError: The build was interrupted meanwhile.
    """
    with _folders() as (base, work, inside):
        home = base / "home"
        home.mkdir()
        told = tell(base)
        passed = passed_variables(os.environ, task.policy.pass_env)
        end = processes.run(
            [python, str(script)],
            folder=work,
            variables={**environment.variables(home), **passed, **told},
            stdout=task.draft.stdout,
            stderr=task.draft.stderr,
            timeout=task.cell.timeout or DEFAULT_TIMEOUT_SECONDS,
            marker=(CONTEXT_VARIABLE, told[CONTEXT_VARIABLE]),
            watch=watch,
            cancelled=cancelled,
            memory_limit=task.policy.memory_limit or default_memory_limit(),
        )
        collected = _collect(task, inside, task.policy.artifact_limit)
        for log in (task.draft.stdout, task.draft.stderr):
            hide_paths(log, {work: "", home: "~", **task.hidden})
    status, failure = _judge(task, end, collected)
    _tell_refused(task.draft.stderr, collected)
    return finish(task, status, failure, seconds=end.seconds, exit_code=end.code)


@contextmanager
def _folders() -> Iterator[tuple[Path, Path, int]]:
    """Make a folder for one run, and in it the cell's own one, open; remove all of it in the end."""
    with tempfile.TemporaryDirectory(dir=reaper().folder, ignore_cleanup_errors=True) as name:
        base = Path(name)
        work = base / "work"
        work.mkdir()
        inside = open_folder(work)
        try:
            yield base, work, inside
        finally:
            os.close(inside)


def _collect(task: CellTask, folder: int, limit: int) -> Collected:
    try:
        return collect_outputs(folder, task.cell.outputs, task.draft.artifacts, limit)
    except OSError as error:  # a full disk, above all; what was copied before is whole
        return Collected(excess=f"its files cannot be kept: {error.strerror or error}")


def _tell_refused(log: Path, collected: Collected) -> None:
    """Say at the end of the log which files were not kept, and why."""
    lines = [f"kbt: did not keep {name}: {why}\n" for name, why in collected.refused.items()]
    if lines[_TOLD_REFUSED:]:
        lines[_TOLD_REFUSED:] = [f"kbt: did not keep {len(lines) - _TOLD_REFUSED} more files\n"]
    if lines:
        with log.open("ab") as file:
            file.write("".join(lines).encode())


def finish(
    task: CellTask,
    status: Status,
    failure: Failure | None = None,
    *,
    seconds: float = 0.0,
    exit_code: int | None = None,
    started: bool = True,
) -> StoredResult:
    """Return the result of a cell; one that measures and did not end well gets its last record."""
    if failure is not None and task.cell.measures:
        add_failure(
            task.draft.artifacts,
            task.cell.outputs,
            context=task.context,
            device=task.device,
            status=status,
            failure=failure,
        )
    return StoredResult(
        cell=task.name,
        status=status,
        reason=_reason(status, failure),
        seconds=round(seconds, 3),
        exit_code=exit_code,
        started=started,
    )


def _judge(task: CellTask, end: Exit, collected: Collected) -> tuple[Status, Failure | None]:
    """Return how a cell ended, and why if it did not end well."""
    if end.code or end.timed_out or end.flooded or end.memory:
        return _judge_process(task, end)
    wrong = check_records(task.draft.artifacts, task.cell.outputs)
    if collected.missing:
        refused = [
            f"{name}: {why}" for name, why in collected.refused.items() if name[1:-1] in collected.missing
        ]
        wrong = (
            f"did not keep {refused[0]}"
            if refused
            else wrong or f"did not write {', '.join(collected.missing)}"
        )
    wrong = collected.excess or wrong
    return (Status.INVALID, Failure(type="Invalid", msg=wrong)) if wrong else (Status.OK, None)


def _judge_process(task: CellTask, end: Exit) -> tuple[Status, Failure]:
    """Return how a cell ended whose process did not end well."""
    logs = (task.draft.stderr, task.draft.stdout)
    if end.timed_out:
        limit = task.cell.timeout or DEFAULT_TIMEOUT_SECONDS
        return Status.TIMEOUT, _ended("Timeout", f"did not end within {limit} s", logs)
    if end.flooded:
        return Status.ERROR, _ended("Flood", f"printed more than {readable_size(LOG_LIMIT)}", logs)
    if end.memory:
        return Status.OOM, _ended(
            "MemoryLimit", f"held {readable_size(end.memory)} of memory, more than it may", logs
        )
    if end.code < 0 or end.code == 128 + signal.SIGKILL:
        name = _signal_name(-end.code if end.code < 0 else signal.SIGKILL)
        guess = " (out of memory?)" if name == "SIGKILL" else ""
        failure = _ended(name, f"killed by {name}{guess}", logs)
        return (Status.OOM if is_out_of_memory(failure_from_log(logs[0])) else Status.CRASHED), failure
    failure = failure_from_log(logs[0])
    if not failure.type:
        failure = Failure(type=f"exit code {end.code}", msg=failure.msg or last_words(logs[1:]))
    return (Status.OOM if is_out_of_memory(failure) else Status.ERROR), failure


def _ended(kind: str, how: str, logs: tuple[Path, Path]) -> Failure:
    words = last_words(logs)
    return Failure(type=kind, msg=f"{how}; last: {words}" if words else how)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reason(status: Status, failure: Failure | None) -> str:
    if failure is None:
        return ""
    if status in {Status.ERROR, Status.OOM} and failure.type not in _SAID_WHOLE:
        return f"{failure.type}: {failure.msg}" if failure.msg else failure.type
    return failure.msg
