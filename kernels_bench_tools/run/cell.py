"""One process of a cell: what it needs to run, and how it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import open_regular, write_struct
from kernels_bench_tools.measure.judge.messages import Ended
from kernels_bench_tools.measure.judge.runner import Turn
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.project import CellPolicy, Project
from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import is_implementation
from kernels_bench_tools.records.outcome import Outcome, cell_status
from kernels_bench_tools.records.record import Failure, Status
from kernels_bench_tools.records.request import CONTEXT_VARIABLE, NEEDS_VARIABLE, CellContext, Need, Needs
from kernels_bench_tools.run.cache.store import LOGS, Draft, Entry, StoredResult
from kernels_bench_tools.run.cell_outputs import Collected, add_failure, check_records, read_outcome
from kernels_bench_tools.run.environment.base import Prepared
from kernels_bench_tools.run.logs import failure_from_log, is_disk_full, is_out_of_memory, last_line, public
from kernels_bench_tools.run.process.run import LOG_LIMIT, Exit, Stop
from kernels_bench_tools.text.names import environment_key
from kernels_bench_tools.text.numbers import size as readable_size
from kernels_bench_tools.text.words import plural

DEFAULT_TIMEOUT_SECONDS = 900
"""For cells without ``timeout=``. uvnote's 300 s are too few for a first compilation of every workload with
autotuning; with much more, one cell that hangs would hold a device for most of a build."""
GONE = "its result was removed or changed while this build ran"
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
    results: Mapping[CellName, Entry]
    """The results of the cells that it needs, among others."""
    policy: CellPolicy
    on_output: Callable[[str], None]
    """Called with each line that it prints."""
    key: str
    """Its key in the cache."""
    previous: Entry | None
    """Its last result, if that was made by the same code from other records."""
    changed_input: Callable[[bool], str]
    """Returns the first of its inputs that has changed since its key was made, and that it has; empty if none has. Asked
    with whether it has run."""
    turn: Turn | None = None
    """When it may measure; at once if None."""

    @property
    def cell(self) -> Cell:
        return self.node.cell

    @property
    def script(self) -> Path:
        return self.node.notebook.script_path(self.cell)

    @property
    def timeout(self) -> int:
        return self.cell.timeout or DEFAULT_TIMEOUT_SECONDS

    def result(
        self, status: Status, failure: Failure | None = None, *, transient: bool = False
    ) -> StoredResult:
        """Return the result of the cell; a failure, without what is private, is added to the records of a cell that measures.

        ``transient`` is whether it failed for a reason outside of the cell.
        """
        failure = failure and Failure(type=failure.type, msg=public(failure.msg))
        if failure is not None and self.cell.measures:
            add_failure(self.draft.artifacts, self.cell.outputs, self.context, self.device, status, failure)
        reason = failure.msg if failure else ""
        if failure and status in {Status.ERROR, Status.OOM} and failure.type not in _COMPLETE_MESSAGES:
            reason = f"{failure.type}: {reason}" if reason else failure.type
        return StoredResult(cell=str(self.node.name), status=status, reason=reason, transient=transient)

    def result_without_environment(self, prepared: Prepared) -> StoredResult:
        failure = Failure(type="Resolution", msg=prepared.reason)
        return self.result(Status.ERROR, failure, transient=not prepared.unsolvable)

    def outdated_result(self, change: str) -> StoredResult:
        """Return that the cell has no result although it may have run: what it ran with has changed."""
        failure = Failure(type="Invalid", msg=f"{change}, so it has no result. Build again to run it")
        return self.result(Status.INVALID, failure, transient=True)


def write_inputs(folder: Path, project: Project, task: CellTask, judge: str = "") -> dict[str, str]:
    """Write the inputs of a cell into a folder of this run alone; return the variables that name them.

    They are its context, and where the results of its needs are. uvnote's variables name the folders of the needs
    that succeeded; ours describe all needs. ``judge`` is the socket of the process that judges the cell.
    """
    node, results = task.node, task.results
    needs = [
        Need(
            notebook=name.notebook,
            cell=name.cell,
            front=task.graph.nodes[name].notebook.front,
            status=results[name].result.status,
            reason=results[name].result.reason,
            directory=str(results[name].artifacts),
        )
        for name in node.foreign
    ]
    described = Needs(
        project=str(project.root),
        notebook=node.name.notebook,
        device=task.device,
        cells=needs,
        files=list(map(str, node.files)),
        previous=str(task.previous.artifacts) if task.previous else "",
    )
    context_file, needs_file = folder / "context.json", folder / "needs.json"
    write_struct(context_file, msgspec.structs.replace(task.context, judge=judge))
    write_struct(needs_file, described)
    variables = _uvnote_variables(folder, node, results)
    return {CONTEXT_VARIABLE: str(context_file), NEEDS_VARIABLE: str(needs_file), **variables}


def _uvnote_variables(folder: Path, node: Node, results: Mapping[CellName, Entry]) -> dict[str, str]:
    """Return uvnote's variables; as in uvnote, a need that failed has none."""
    good = {
        name: str(results[name].artifacts) for name in node.needs if results[name].result.status is Status.OK
    }
    variables = {
        f"UVNOTE_INPUT_{environment_key(need.cell)}": good[need] for need in node.local if need in good
    }
    if variables:
        variables["UVNOTE_INPUTS"] = ",".join(variables)
    for need in node.foreign:
        if need in good:
            variables[f"UVNOTE_FILE_{_stem_key(need.notebook)}_{environment_key(need.cell)}"] = good[need]
    for notebook, cells in node.whole.items():
        manifest = folder / f"{_stem_key(notebook)}.json"
        manifest.write_bytes(msgspec.json.encode({need.cell: good[need] for need in cells if need in good}))
        variables[f"UVNOTE_FILE_{_stem_key(notebook)}"] = str(manifest)
    return variables


def _stem_key(notebook: str) -> str:
    return environment_key(notebook.rpartition("/")[2].removesuffix(".md"))


def calls_harness(cell: Cell) -> bool:
    """Return whether a measuring cell calls this package's ``run_benchmark``; other harnesses' have that name, too."""
    return cell.measures and "kernels_bench_tools" in cell.code and "run_benchmark" in cell.code


def calls_combine(cell: Cell) -> bool:
    """Return whether a cell that does not measure combines records, and draws charts of them."""
    return not cell.measures and "kernels_bench_tools" in cell.code and "combine" in cell.code


def process_result(
    task: CellTask,
    end: Exit,
    ended: Ended,
    collected: Collected,
    *,
    transient: bool,
    note: Callable[[str], None],
) -> StoredResult:
    """Return the result of a cell whose process has ended; ``transient`` is whether something outside ended it.

    ``note`` is called for lines of its files that are meant as records and are none.
    """
    status, failure, notes = ended.status, ended.failure, list[str]()
    if failure is None and (flaw := _flaw_of_outputs(task, collected, notes)):
        status, failure = Status.INVALID, Failure(type="Invalid", msg=flaw)
    if notes and not task.context.process:
        others = f" ({plural(len(notes) - 1, 'more line')} in its log)" if notes[1:] else ""
        note(f"{task.node.name}: {notes[0]}{others}")
    lines = [f"kbt: did not keep {name}: {why}\n" for name, why in collected.refused.items()]
    lines += [f"kbt: {line}\n" for line in notes]
    if lines[_LISTED_REFUSALS:]:
        lines[_LISTED_REFUSALS:] = [f"kbt: {len(lines) - _LISTED_REFUSALS} more\n"]
    if lines:
        with open_regular(task.draft.stderr, "ab") as file:
            file.write("".join(lines).encode())
    transient = transient or (failure is not None and is_disk_full(failure))
    result = task.result(status, failure, transient=transient)
    return msgspec.structs.replace(result, seconds=round(end.seconds, 3), exit_code=end.code)


def _flaw_of_outputs(task: CellTask, collected: Collected, notes: list[str]) -> str:
    """Return what is wrong with the files of a cell that succeeded; empty if nothing is. For ``notes`` see :func:`check_records`."""
    plain = not calls_harness(task.cell)
    empty = plain and not is_implementation(task.context.origin.notebook)
    flaw = check_records(task.draft.artifacts, task.cell.outputs, plain=plain, empty=empty, notes=notes)
    refused = next((name for name in collected.refused if name[1:-1] in collected.missing), "")
    if collected.excess:
        return collected.excess
    if refused:
        return f"did not keep {refused}: {collected.refused[refused]}"
    if flaw.startswith("wrote no ") and collected.others:
        return f"{flaw}; it wrote {collected.others[0]}, which outputs= does not name"
    if collected.missing and not flaw:
        return f"did not write {', '.join(collected.missing)}"
    return flaw


def how_it_ended(task: CellTask, end: Exit) -> Ended:
    """Return the status and the failure of a cell whose process has ended, by its exit and its logs."""
    if not (end.code or end.stop):
        return Ended()
    logs = (task.draft.stderr, task.draft.stdout)
    if end.stop is not None:
        status, kind, how = {
            Stop.TIMEOUT: (Status.TIMEOUT, "Timeout", f"timed out after {task.timeout} s"),
            Stop.OUTPUT: (Status.ERROR, "Flood", f"printed more than {readable_size(LOG_LIMIT)}"),
            Stop.MEMORY: (
                Status.OOM,
                "MemoryLimit",
                f"used {readable_size(end.memory)} of memory, more than its limit",
            ),
        }[end.stop]
        failure = _with_last_line(kind, how, logs)
    elif end.code < 0 or end.signal_number == signal.SIGKILL:
        kind = next(
            (known.name for known in signal.Signals if known == end.signal_number),
            f"signal {end.signal_number}",
        )
        guess = " (out of memory?)" if kind == "SIGKILL" else ""
        failure = _with_last_line(kind, f"killed by {kind}{guess}", logs)
        status = Status.OOM if is_out_of_memory(failure_from_log(logs[0])) else Status.CRASHED
    else:
        failure = failure_from_log(logs[0])
        if not failure.type:
            # The last line of a cell that wrote records is one of its results, no reason.
            printed = () if any(task.draft.artifacts.rglob("*.jsonl")) else logs[1:]
            failure = Failure(type=f"exit code {end.code}", msg=failure.msg or last_line(printed))
        status = Status.OOM if is_out_of_memory(failure) else Status.ERROR
    return Ended(status=status, failure=failure, crashed=end.code < 0 and end.stop is None)


def _with_last_line(kind: str, how: str, logs: tuple[Path, Path]) -> Failure:
    line = last_line(logs)
    return Failure(type=kind, msg=f"{how}; last output: {line}" if line else how)


def describe_cell(
    project: Project, cell: Cell, entry: Entry | None, cached: bool, expect: Mapping[str, str]
) -> CellRun:
    """Return a cell and its last result as pages show it.

    ``cached`` is whether this build did not run it, ``expect`` the statuses that its notebook expects, with reasons.
    Its status follows from those of its workloads, and from how its process ended if that failed.
    """
    run = CellRun(
        id=cell.id,
        code=cell.code,
        digest=cell.digest,
        line=cell.file_line,
        collapse_code=cell.collapse_code,
        collapse_output=cell.collapse_output,
        commented=cell.commented,
    )
    if entry is None:
        return run
    if not entry.exists:
        run.status, run.reason = Status.INVALID, f"{GONE}. Build again to run it"
        return run

    folder, inside = str(entry.folder), project.relative(entry.folder)

    def log(name: str) -> str:
        with suppress(FileNotFoundError):  # another cell has removed it
            return f"{inside}/{name}" if os.stat(f"{folder}/{name}").st_size else ""  # noqa: PTH116 - much faster
        return ""

    result = entry.result
    outcome = result.outcome or (read_outcome(entry.artifacts) if cell.measures else Outcome())
    reasons = dict(outcome.reasons)
    if result.status is not Status.OK or not reasons:
        reasons[result.status] = result.reason
    unexpected = [status for status in reasons if status.failed and status.value not in expect]
    run.status = cell_status(unexpected or reasons)
    run.reason, run.expected = reasons[run.status], expect.get(run.status.value, "")
    run.workloads, run.disturbed, run.cached = outcome.workloads, outcome.disturbed, cached
    run.seconds, run.exit_code = result.seconds, result.exit_code
    run.stdout, run.stderr, run.environment_log = map(log, LOGS)
    run.artifacts = {name: f"{inside}/artifacts/{name}" for name in result.artifacts}
    return run
