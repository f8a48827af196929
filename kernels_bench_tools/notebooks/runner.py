"""Runs one cell, and says how it ended.

A cell runs in an empty folder of its own, as a session of its own, with its output straight into files.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.devices import Device
from kernels_bench_tools.notebooks.cache import Draft, StoredResult
from kernels_bench_tools.notebooks.cells import Cell
from kernels_bench_tools.notebooks.environments import CellEnvironment
from kernels_bench_tools.notebooks.outputs import (
    collect_outputs,
    failure_from_log,
    hide_paths,
    is_out_of_memory,
)
from kernels_bench_tools.notebooks.processes import LOG_LIMIT, Exit, Processes
from kernels_bench_tools.notebooks.rescue import add_failure, check_records
from kernels_bench_tools.records import Failure, Status
from kernels_bench_tools.runs import CONTEXT_VARIABLE, CellContext

DEFAULT_TIMEOUT_SECONDS = 900
"""For cells without ``timeout=``. uvnote's 300 s are too few for a first compilation of every workload
with autotuning; much more would let one cell that hangs hold a device for the better part of a build."""


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


def run_cell(
    task: CellTask,
    python: str,
    script: Path,
    environment: CellEnvironment,
    tell: Callable[[Path], dict[str, str]],
    processes: Processes,
    watch: Callable[[], None],
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

    Raises:
        InterruptedBuildError: The build was interrupted meanwhile.
    """
    with tempfile.TemporaryDirectory(prefix="kbt-", ignore_cleanup_errors=True) as name:
        base = Path(name).resolve()
        work, home = base / "work", base / "home"
        work.mkdir()
        home.mkdir()
        told = tell(base)
        end = processes.run(
            [python, str(script)],
            folder=work,
            variables={**environment.variables(home), **told},
            stdout=task.draft.stdout,
            stderr=task.draft.stderr,
            timeout=task.cell.timeout or DEFAULT_TIMEOUT_SECONDS,
            marker=(CONTEXT_VARIABLE, told[CONTEXT_VARIABLE]),
            watch=watch,
        )
        missing = collect_outputs(work, task.cell.outputs, task.draft.artifacts)
        for log in (task.draft.stdout, task.draft.stderr):
            hide_paths(log, {work: "", home: "~", **task.hidden})
    status, failure = _judge(task, end, missing)
    return finish(task, status, failure, seconds=end.seconds, exit_code=end.code)


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


def _judge(task: CellTask, end: Exit, missing: list[str]) -> tuple[Status, Failure | None]:
    """Return how a cell ended, and why if it did not end well."""
    if end.timed_out:
        limit = task.cell.timeout or DEFAULT_TIMEOUT_SECONDS
        return Status.TIMEOUT, Failure(type="Timeout", msg=f"did not end within {limit} s")
    if end.flooded:
        return Status.ERROR, Failure(type="Flood", msg=f"printed more than {LOG_LIMIT // 2**20} MiB")
    if end.code < 0 or end.code == 128 + signal.SIGKILL:
        return Status.CRASHED, _signal_failure(-end.code if end.code < 0 else signal.SIGKILL)
    if end.code:
        failure = failure_from_log(task.draft.stderr)
        if not failure.type:
            failure = Failure(type=f"exit code {end.code}", msg=failure.msg)
        return (Status.OOM if is_out_of_memory(failure) else Status.ERROR), failure
    wrong = check_records(task.draft.artifacts, task.cell.outputs)
    if not wrong and missing:
        wrong = f"did not write {', '.join(missing)}"
    return (Status.INVALID, Failure(type="Invalid", msg=wrong)) if wrong else (Status.OK, None)


def _signal_failure(number: int) -> Failure:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    guess = " (out of memory?)" if number == signal.SIGKILL else ""
    return Failure(type=name, msg=f"killed by {name}{guess}")


def _reason(status: Status, failure: Failure | None) -> str:
    if failure is None:
        return ""
    if status in {Status.ERROR, Status.OOM} and failure.type not in {"Flood", "Resolution"}:
        return f"{failure.type}: {failure.msg}" if failure.msg else failure.type
    return failure.msg
