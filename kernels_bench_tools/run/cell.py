"""Runs one process of a cell, and determines its status.

A process runs in an empty folder, in a session of its own, and its output goes straight into files.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.limits import CellPolicy
from kernels_bench_tools.run.cache.entry import Draft, Entry, StoredResult
from kernels_bench_tools.run.cell_outputs import Collected, collect_outputs, open_folder
from kernels_bench_tools.run.cell_records import add_failure, check_records
from kernels_bench_tools.run.environment.base import CellEnvironment, Prepared
from kernels_bench_tools.run.log_text import failure_from_log, hide_paths, is_out_of_memory, last_line
from kernels_bench_tools.run.process.memory import default_memory_limit
from kernels_bench_tools.run.process.reaper import reaper
from kernels_bench_tools.run.process.run import LOG_LIMIT, Exit, Processes, Stop
from kernels_bench_tools.schema.build import CONTEXT_VARIABLE, CellContext
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Failure, Status
from kernels_bench_tools.text import size as readable_size

DEFAULT_TIMEOUT_SECONDS = 900
"""For cells without ``timeout=``. uvnote's 300 s are too few for a first compilation of every workload with
autotuning; with much more, one cell that hangs would hold a device for most of a build."""
_LISTED_REFUSALS = 10
_COMPLETE_MESSAGES = {"Flood", "Resolution", "MemoryLimit", "SIGABRT", "SIGKILL"}
"""Failures whose message needs no type before it."""


@dataclass(frozen=True)
class CellTask:
    """One process of a cell, ready to run."""

    node: Node
    graph: Graph
    """The cell, and at least the cells that it needs."""
    context: CellContext
    device: Device
    draft: Draft
    """Where its outputs and logs are put."""
    prepared: Prepared
    """Its environment."""
    results: Mapping[CellName, Entry]
    """The results of the cells that it needs, among others."""
    policy: CellPolicy
    on_output: Callable[[str], None]
    """Called with each line that it prints."""

    @property
    def name(self) -> str:
        """``NOTEBOOK:CELL``."""
        return str(self.node.name)

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.node.cell


def run_cell(
    task: CellTask,
    *,
    python: str,
    environment: CellEnvironment,
    write_inputs: Callable[[Path], dict[str, str]],
    hidden: Mapping[Path, str],
    processes: Processes,
    watch: Callable[[], None],
) -> StoredResult:
    """Run a cell to its end, and put its outputs and logs into its draft.

    Args:
        task: The cell.
        python: The interpreter of its environment.
        environment: The kind of its environment.
        write_inputs: Writes the cell's inputs into a folder, and returns the variables that name them.
        hidden: Folders whose paths are replaced in its logs.
        processes: The build's processes.
        watch: Called now and then while it runs.

    Raises:
        InterruptedBuildError: The build was interrupted meanwhile.
    """
    with _folders() as (base, work, work_fd):
        home = base / "home"
        home.mkdir()
        inputs = write_inputs(base)
        passed = {name: os.environ[name] for name in task.policy.pass_env if name in os.environ}
        end = processes.run(
            [python, str(task.node.notebook.script_path(task.cell))],
            folder=work,
            variables={**environment.variables(home), **passed, **inputs},
            stdout=task.draft.stdout,
            stderr=task.draft.stderr,
            timeout=task.cell.timeout or DEFAULT_TIMEOUT_SECONDS,
            marker=(CONTEXT_VARIABLE, inputs[CONTEXT_VARIABLE]),
            watch=watch,
            memory_limit=task.policy.memory_limit or default_memory_limit(),
        )
        collected = _collect(task, work_fd)
        for log in (task.draft.stdout, task.draft.stderr):
            hide_paths(log, {work: "", home: "~", **hidden})
    status, failure = _status(task, end, collected)
    _log_refused_files(task.draft.stderr, collected)
    return finish(task, status, failure, seconds=end.seconds, exit_code=end.code)


@contextmanager
def _folders() -> Iterator[tuple[Path, Path, int]]:
    """Make a folder for one run, and open the cell's own folder in it; remove all of it in the end."""
    with tempfile.TemporaryDirectory(dir=reaper().folder, ignore_cleanup_errors=True) as name:
        base = Path(name)
        work = base / "work"
        work.mkdir()
        work_fd = open_folder(work)
        try:
            yield base, work, work_fd
        finally:
            os.close(work_fd)


def _collect(task: CellTask, folder: int) -> Collected:
    try:
        return collect_outputs(folder, task.cell.outputs, task.draft.artifacts, task.policy.artifact_limit)
    except OSError as error:  # usually a full disk; what was copied before is complete
        return Collected(excess=f"its files cannot be kept: {error.strerror or error}")


def _log_refused_files(log: Path, collected: Collected) -> None:
    lines = [f"kbt: did not keep {name}: {why}\n" for name, why in collected.refused.items()]
    if lines[_LISTED_REFUSALS:]:
        lines[_LISTED_REFUSALS:] = [f"kbt: did not keep {len(lines) - _LISTED_REFUSALS} more files\n"]
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
    """Return the result of a cell; a failure is added to the records of a cell that measures."""
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


def _status(task: CellTask, end: Exit, collected: Collected) -> tuple[Status, Failure | None]:
    """Return how a cell ended, and why if it failed."""
    if end.code or end.stop:
        return _failed_status(task, end)
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


def _failed_status(task: CellTask, end: Exit) -> tuple[Status, Failure]:
    """Return how a cell ended whose process failed or was ended."""
    logs = (task.draft.stderr, task.draft.stdout)
    if end.stop is Stop.TIMEOUT:
        limit = task.cell.timeout or DEFAULT_TIMEOUT_SECONDS
        return Status.TIMEOUT, _with_last_line("Timeout", f"did not end within {limit} s", logs)
    if end.stop is Stop.OUTPUT:
        return Status.ERROR, _with_last_line("Flood", f"printed more than {readable_size(LOG_LIMIT)}", logs)
    if end.stop is Stop.MEMORY:
        how = f"held {readable_size(end.memory)} of memory, more than it may"
        return Status.OOM, _with_last_line("MemoryLimit", how, logs)
    if end.code < 0 or end.code == 128 + signal.SIGKILL:
        name = _signal_name(-end.code if end.code < 0 else signal.SIGKILL)
        guess = " (out of memory?)" if name == "SIGKILL" else ""
        failure = _with_last_line(name, f"killed by {name}{guess}", logs)
        return (Status.OOM if is_out_of_memory(failure_from_log(logs[0])) else Status.CRASHED), failure
    failure = failure_from_log(logs[0])
    if not failure.type:
        failure = Failure(type=f"exit code {end.code}", msg=failure.msg or last_line(logs[1:]))
    return (Status.OOM if is_out_of_memory(failure) else Status.ERROR), failure


def _with_last_line(kind: str, how: str, logs: tuple[Path, Path]) -> Failure:
    line = last_line(logs)
    return Failure(type=kind, msg=f"{how}; last: {line}" if line else how)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reason(status: Status, failure: Failure | None) -> str:
    if failure is None:
        return ""
    if status in {Status.ERROR, Status.OOM} and failure.type not in _COMPLETE_MESSAGES:
        return f"{failure.type}: {failure.msg}" if failure.msg else failure.type
    return failure.msg
