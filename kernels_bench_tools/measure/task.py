"""All workloads of a cell: each is judged, gets a record, and a line of the table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.measure.candidate import Candidate, Description
from kernels_bench_tools.measure.device.environment import describe_device
from kernels_bench_tools.measure.judge.remote import RemoteCandidate
from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.measure.record import RecordFile, RunInfo, make_record, with_session
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.trial import Trial, run_trial
from kernels_bench_tools.records.build import FORWARD, CellContext
from kernels_bench_tools.records.record import Failure, Judged, Latency, Record, Status, Timing
from kernels_bench_tools.records.roofline import peaks_for
from kernels_bench_tools.text import milliseconds

QUICK_SET = "smoke"
"""The workload set for a quick try: peaks are not measured for it."""
_COLUMNS = {"median": 11, "±": 6, "n": 4, "GB/s": 7, "of peak": 13, "host": 9, "e2e": 9}
"""Title and width of the columns between the workload's name and the status."""


class LoadFailure(msgspec.Struct):
    """Why an implementation could not be loaded."""

    status: Status
    failure: Failure


class Task(msgspec.Struct, kw_only=True):
    """What a cell asks for with ``run_benchmark``."""

    operator: str
    workloads: str
    """Names of workload sets, comma-separated."""
    only: dict[str, Any] = {}
    mode: str = FORWARD
    layout: str = ""
    in_place: bool = False
    precision: str = ""
    prepared: bool = False
    """Whether parameters are prepared before the calls."""
    device: str
    """Torch's name of it."""
    implementation: str = ""
    tags: dict[str, str] = {}
    kernels: str = ""
    """Regular expression for names of kernels."""
    file: str = ""
    """Name of the file of records."""
    import_ms: float | None = None
    load_ms: float | None = None
    failure: LoadFailure | None = None

    def peaks(self, operator: Operator) -> set[str]:
        """Return the names of the device's peaks with which the workloads are compared; none for a quick try."""
        if self.workloads == QUICK_SET:
            return set()
        return peaks_for(workload.dtype for workload in self.selected(operator))

    def selected(self, operator: Operator) -> list[Workload]:
        """Return the workloads of the operator; ``OperatorError`` if there are none."""
        return in_mode(self.adapted(operator), self.mode).workloads(self.workloads, self.only)

    def adapted(self, operator: Operator) -> Operator:
        """Return the operator for what the implementation declares."""
        return operator.adapted(
            layout=self.layout, in_place=self.in_place, precision=self.precision, prepared=self.prepared
        )


class TaskState:
    """How far a task is, which another process of the same cell may go on with."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex
        self.selected: list[Workload] | None = None
        """The workloads, once they are known."""
        self.started = 0
        """Number of workloads that were begun."""
        self.done = 0
        """Number of workloads with a record."""
        self.description: Description | None = None
        self.file: RecordFile | None = None
        self.info: RunInfo | None = None


def measure_task(
    task: Task,
    operator: Operator,
    candidate: Candidate | RemoteCandidate,
    session: BenchmarkSession,
    context: CellContext,
    *,
    print: Callable[[str], object],  # noqa: A002
    state: TaskState | None = None,
) -> list[Record]:
    """Judge a candidate on all workloads of a task that have no record yet; return the records of this run.

    ``ConnectionError`` if the candidate's process ends; ``state`` then has what was done.
    """
    state = state or TaskState()
    adapted = task.adapted(operator)
    selected = state.selected = task.selected(operator)
    info = state.info = state.info or RunInfo(
        run=state.run,
        operator=operator.name,
        implementation=task.implementation,
        device=describe_device(task.device),
        tags=task.tags | {name: value for name in ("layout", "precision") if (value := getattr(task, name))},
        context=context,
        import_ms=task.import_ms,
        load_ms=task.load_ms,
        judged=Judged.SEPARATELY if session.separate else Judged.IN_PROCESS,
    )
    file = state.file = state.file or RecordFile(Path(task.file), on_disk=not session.separate)
    suffix = "" if task.mode == FORWARD else f", {task.mode}"
    print(
        f"{info.implementation}: {operator.name} on {info.device.name}, workloads {task.workloads}{suffix}\n"
    )
    width = max(len("workload"), *(len(workload.name) for workload in selected))
    print(f"{'workload':<{width}}  {heading()}\n")
    for number, workload in list(enumerate(selected))[state.done :]:
        print(f"{workload.name:<{width}}  ")
        state.started = number + 1
        if task.failure:
            trial = Trial(status=task.failure.status, failure=task.failure.failure)
        else:
            trial = run_trial(
                adapted,
                workload,
                number,
                candidate,
                session,
                mode=task.mode,
                process=context.process,
                kernels=task.kernels,
            )
        state.description = state.description or candidate.describe()
        record = make_record(info, workload, trial, state.description)
        written = file.append(with_session(record, session.sentinels, {} if number else session.peaks))
        state.done = number + 1
        print(f"{result_line(written)}\n")
    if task.failure is None:
        session.close()
    return file.complete(session.sentinels, session.peaks)


def heading() -> str:
    """Return the titles of the columns of ``result_line``."""
    return f"{_line(_COLUMNS)}  status"


def result_line(record: Record) -> str:
    """Return a record's figures and status."""
    return f"{_line(_figures(record))}  {_status(record)}"


def _line(values: Iterable[str]) -> str:
    return "  ".join(f"{value:>{width}}" for value, width in zip(values, _COLUMNS.values(), strict=True))


def _figures(record: Record) -> list[str]:
    latency, quantities, roofline = record.lat_ms, record.quantities, record.roofline
    if latency is None:
        return [""] * len(_COLUMNS)
    passed = record.outcome is Status.OK  # a wrong result has no rate
    return [
        f"{milliseconds(latency.p50)} ms",
        _half_width(latency),
        str(latency.reps),
        f"{record.work.bytes_moved / latency.p50 / 1e6:.1f}" if record.work and passed else "",
        f"{roofline.fraction:.0%} {roofline.ceiling.removeprefix('matmul_')}" if roofline and passed else "",
        _median(quantities.host_submit if quantities else None),
        _median(quantities.e2e if quantities else None),
    ]


def _half_width(latency: Latency) -> str:
    """Return the larger distance from the median to an end of its interval, in percent."""
    if latency.ci_low is None or latency.ci_high is None or latency.p50 <= 0:
        return ""
    reach = max(latency.p50 - latency.ci_low, latency.ci_high - latency.p50)
    return f"{100 * reach / latency.p50:.1f} %"


def _median(timing: Timing | None) -> str:
    return milliseconds(timing.p50) if timing else ""


def _status(record: Record) -> str:
    reason = f": {record.err.msg}" if record.err else ""
    flags = f" [{', '.join(flag.value for flag in record.flags)}]" if record.flags else ""
    return f"{record.outcome.value}{flags}{reason}"
