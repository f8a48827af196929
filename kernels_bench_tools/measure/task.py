"""All workloads of a cell: each is judged, gets a record in the file of the run, and a line of the table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.measure.device.environment import describe_affinity, describe_device
from kernels_bench_tools.measure.drawn_sets import with_drawn_sets
from kernels_bench_tools.measure.judge.candidate import Candidate, Description
from kernels_bench_tools.measure.judge.guard import PACKAGES, TRUST
from kernels_bench_tools.measure.judge.remote import RemoteCandidate
from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import CallError, Operator, Workload
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.trial import Trial, run_trial
from kernels_bench_tools.records.codec import append_record, write_records
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import SCHEMA, Failure, FirstCall, Judged, Record, Status
from kernels_bench_tools.records.request import FORWARD, CellContext
from kernels_bench_tools.records.roofline import peaks_for
from kernels_bench_tools.text.numbers import milliseconds

QUICK_SET = "smoke"
"""The workload set for a quick try: peaks are not measured for it."""
_COLUMNS = {"median": 11, "±": 6, "n": 4, "GB/s": 7, "of peak": 13, "host": 9, "e2e": 9}
"""Title and width of the columns between the workload's name and the status."""
DIGITS = 5
"""Significant digits of figures beside the headline."""
ERROR_DIGITS = 4
MAX_KERNEL_NAME = 120
"""Characters that are kept of a kernel's name: names of templates can fill kilobytes."""


class LoadFailure(msgspec.Struct):
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

    def peaks(self, selected: Iterable[Workload]) -> set[str]:
        """Return the names of the device's peaks with which the workloads are compared; none for a quick try."""
        return set() if self.workloads == QUICK_SET else peaks_for(workload.dtype for workload in selected)

    def selected(self, operator: Operator) -> list[Workload]:
        """Return the workloads of the operator; ``OperatorError`` if there are none."""
        found = with_drawn_sets(self.adapted(operator), self.workloads, self.device.partition(":")[0])
        return in_mode(found, self.mode).workloads(self.workloads, self.only)

    def adapted(self, operator: Operator) -> Operator:
        return operator.adapted(
            layout=self.layout, in_place=self.in_place, precision=self.precision, prepared=self.prepared
        )


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What all records of one run have in common."""

    run: str
    operator: str
    implementation: str
    device: Device
    tags: dict[str, str] = field(default_factory=dict)
    context: CellContext = field(default_factory=CellContext)
    import_ms: float | None = None
    load_ms: float | None = None
    judged: Judged = Judged.IN_PROCESS

    @property
    def trust(self) -> str:
        environment = self.context.origin.environment if self.judged is Judged.SEPARATELY else ""
        return f"{TRUST} {PACKAGES[environment]}".strip()


def make_record(info: RunInfo, workload: Workload, trial: Trial, description: Description) -> Record:
    """Return the record of a trial, with the current time; ``description`` is that of the implementation's process."""
    found, correctness, roofline = trial.timing, trial.correctness, trial.roofline
    first_call = FirstCall(
        import_ms=info.import_ms,
        load_ms=info.load_ms,
        first_ms=trial.compile_ms,
        second_ms=trial.second_ms,
    )
    affinity = describe_affinity() if info.device.kind == "cpu" else ""
    tags = info.tags | ({"affinity": affinity} if affinity else {})
    if found is not None:
        tags |= {"timer_note": found.note} if found.note else {}
        if found.events_ms is not None and found.span_ms is not None:
            tags["events_over_cupti"] = f"{found.events_ms / found.latency.p50:.3f}"
    environment = replace(description.environment, driver=info.device.driver)
    clocks = found.clocks if found else None
    if clocks is not None:
        environment.sm_clock_mhz, environment.memory_clock_mhz = clocks.sm_mhz, clocks.memory_mhz
    return Record(
        schema=SCHEMA,
        ts=datetime.now(UTC).isoformat(timespec="milliseconds"),
        run=info.run,
        op=info.operator,
        impl=info.implementation,
        tags=tags,
        wl=workload.describe(info.device.kind),
        env=environment,
        device=info.device,
        status=trial.status,
        ok=trial.status is Status.OK,
        judged=info.judged,
        lat_ms=found.latency if found else None,
        span_ms=rounded(found.span_ms) if found else None,
        kernels=[
            replace(rounded(kernel), name=kernel.name[:MAX_KERNEL_NAME])
            for kernel in (found.kernels if found else [])
        ],
        compile_ms=rounded(trial.compile_ms),
        peak_bytes=trial.peak_bytes,
        work=trial.work,
        absmax=rounded(correctness.absmax, ERROR_DIGITS) if correctness else None,
        corr=rounded(correctness.corr, ERROR_DIGITS) if correctness else {},
        err=trial.failure,
        process=info.context.process,
        quantities=rounded(found.quantities) if found else None,
        first_call=rounded(first_call),
        clocks=clocks,
        flags=trial.flags,
        regime=roofline.regime if roofline else None,
        roofline=rounded(roofline.roofline) if roofline else None,
        trust=info.trust if found else "",
        provenance=replace(
            info.context.provenance(),
            packages=description.packages,
            seed=trial.seed,
            hub=description.hub,
        ),
    )


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Return the value with all floats in it rounded to this many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, msgspec.Struct):
        fields = {name: rounded(getattr(value, name), digits) for name in value.__struct_fields__}
        return replace(value, **fields)
    if isinstance(value, dict):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    return [rounded(inner, digits) for inner in value] if isinstance(value, list) else value


class RecordFile:
    """The records of one run: each is appended to the file at once, and all are completed at the end.

    If ``on_disk`` is false, nothing is written.
    """

    def __init__(self, path: Path, *, on_disk: bool = True) -> None:
        self.path, self._on_disk = path, on_disk
        self.records: list[Record] = []
        """Of this run."""
        self._before = path.stat().st_size if path.exists() else 0

    def append(self, record: Record) -> Record:
        """Append a record at once; after the first that ran, without what all share. Return what was written."""
        if any(earlier.outcome.ran for earlier in self.records):
            record = without_shared(record)
        if self._on_disk:
            append_record(self.path, record)
        self.records.append(record)
        return record

    def complete(self, sentinels: Mapping[str, Sequence[float]], peaks: Mapping[str, float]) -> list[Record]:
        """Add sentinels to all records and peaks to the first; replace the file atomically and return the records."""
        complete = [
            with_session(record, sentinels, {} if number else peaks)
            for number, record in enumerate(self.records)
        ]
        if complete != self.records:
            self.records = complete
            if not self._on_disk:
                return complete
            others = read_file(self.path)[: self._before]
            write_records(self.path, complete, before=others)
        return complete


def without_shared(record: Record) -> Record:
    """Return the record without what all records of its process share: packages, trust, import and load times."""
    first = record.first_call
    return replace(
        record,
        trust="",
        first_call=replace(first, import_ms=None, load_ms=None) if first else None,
        provenance=replace(record.provenance, packages={}),
    )


def with_session(
    record: Record, sentinels: Mapping[str, Sequence[float]], peaks: Mapping[str, float]
) -> Record:
    """Return the record with what its process measured once: sentinels and peaks."""
    times = {name: list(ms) for name, ms in sentinels.items()}
    return replace(record, sentinels=rounded(times), ceilings=rounded(dict(peaks)))


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
    selected = state.selected = state.selected or task.selected(operator)
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
                replace(context.request, mode=task.mode),
                process=context.process,
                kernels=task.kernels,
            )
        state.description = state.description or candidate.describe()
        record = make_record(info, workload, trial, state.description)
        written = file.append(with_session(record, session.sentinel_ms, {} if number else session.peaks))
        state.done = number + 1
        print(f"{result_line(written)}\n")
        try:
            candidate.release()
        except CallError:  # after an illegal memory access every call of its process fails
            if state.done < len(selected):
                candidate.abort()
    if task.failure is None:
        session.close()
    return file.complete(session.sentinel_ms, session.peaks)


def heading() -> str:
    """Return the titles of the columns of ``result_line``."""
    return f"{_line(_COLUMNS)}  status"


def result_line(record: Record) -> str:
    cells = dict.fromkeys(_COLUMNS, "")
    latency, quantities = record.lat_ms, record.quantities
    if latency is not None:
        cells |= {"median": f"{milliseconds(latency.p50)} ms", "n": str(latency.reps)}
        if latency.ci_low is not None and latency.ci_high is not None and latency.p50 > 0:
            half_width = max(latency.p50 - latency.ci_low, latency.ci_high - latency.p50)
            cells["±"] = f"{100 * half_width / latency.p50:.1f} %"
        passed = record.outcome is Status.OK  # a wrong result has no rate
        if record.work and passed:
            cells["GB/s"] = f"{record.work.bytes_moved / latency.p50 / 1e6:.1f}"
        if (roofline := record.roofline) and passed:
            cells["of peak"] = f"{roofline.fraction:.0%} {roofline.ceiling.removeprefix('matmul_')}"
        if quantities and quantities.host_submit:
            cells["host"] = milliseconds(quantities.host_submit.p50)
        if quantities and quantities.e2e:
            cells["e2e"] = milliseconds(quantities.e2e.p50)
    reason = f": {record.err.msg}" if record.err else ""
    flags = f" [{', '.join(flag.value for flag in record.flags)}]" if record.flags else ""
    return f"{_line(cells.values())}  {record.outcome.value}{flags}{reason}"


def _line(cells: Iterable[str]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS.values(), strict=True))
