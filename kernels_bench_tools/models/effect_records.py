"""Records of the effect of an implementation on a model."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.hub import loaded_kernels
from kernels_bench_tools.measure.device.environment import (
    describe_device,
    describe_environment,
    imported_packages,
)
from kernels_bench_tools.measure.record import RecordFile
from kernels_bench_tools.measure.task import Task
from kernels_bench_tools.measure.timing.sampling import Call, summarize
from kernels_bench_tools.records.build import CellContext, code_digest
from kernels_bench_tools.records.record import (
    SCHEMA,
    CacheState,
    Effect,
    Failure,
    Latency,
    Part,
    Record,
    Status,
    Timer,
)
from kernels_bench_tools.text import milliseconds

WARM_ROUNDS = 2
"""Rounds that are not measured; each runs every side twice."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One module of a level, or a way to time the whole model."""

    level: int
    module: str
    phase: str
    calls: int
    samples: Mapping[str, Sequence[float]]
    """Milliseconds, by side."""
    timer: Timer
    predicted_ms: float | None = None
    launches: Mapping[str, int] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    host_ms: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)
    parts: Sequence[Part] = ()
    reached: Mapping[str, Any]
    """The fields of :class:`Effect` that say how many instances were replaced."""


class EffectRecords:
    """Makes the records of a run, and writes them into the task's file."""

    def __init__(self, task: Task, context: CellContext, print: Callable[[str], object]) -> None:  # noqa: A002
        self.file = RecordFile(Path(task.file))
        self._common: dict[str, Any] = {
            "schema": SCHEMA,
            "run": uuid.uuid4().hex,
            "op": task.operator,
            "impl": task.implementation,
            "tags": task.tags,
            "device": describe_device(task.device),
            "process": context.process,
        }
        self._context, self._task, self._print = context, task, print

    def keep(self, rows: Iterator[Row]) -> bool:
        """Print the rows of a phase as they are measured, and append their records after the last; return whether there are any."""
        made = []
        for row in rows:
            made.append(self._of(row))
            self._print(_line(made[-1]))
        for record in made:
            self.file.append(record)
        return bool(made)

    def fail(self, status: Status, failure: Failure) -> None:
        """Append a record that says why there are no others."""
        self.file.append(self._record(status=status, err=failure))

    def _of(self, row: Row) -> Record:
        request = self._context.effect
        assert request
        latencies = {side: _latency(samples, row.timer) for side, samples in row.samples.items()}
        effect = Effect(
            model=request.model,
            others=[one.implementation for one in request.others],
            other_digests=[code_digest(one.code) for one in request.others],
            phase=row.phase,
            layers=request.layers,
            level=row.level,
            module=row.module,
            calls=row.calls,
            baseline=latencies["baseline"],
            again=latencies["again"],
            predicted_ms=row.predicted_ms,
            **row.reached,
            launches=row.launches.get("candidate"),
            baseline_launches=row.launches.get("baseline"),
            baseline_peak_bytes=row.peak_bytes.get("baseline"),
            host_ms=row.host_ms.get("candidate"),
            baseline_host_ms=row.host_ms.get("baseline"),
            parts=list(row.parts),
        )
        return self._record(
            wl={"name": effect.workload, "device": self._common["device"].kind},
            status=Status.OK,
            ok=True,
            lat_ms=latencies["candidate"],
            corr=dict(row.agreement),
            peak_bytes=row.peak_bytes.get("candidate"),
            effect=effect,
        )

    def _record(self, **fields: Any) -> Record:
        packages = imported_packages()
        return Record(
            ts=datetime.now(UTC).isoformat(timespec="milliseconds"),
            env=describe_environment(self._task.device),
            provenance=msgspec.structs.replace(
                self._context.provenance(), packages=packages, hub=loaded_kernels()
            ),
            **self._common,
            **fields,
        )


def _latency(samples: Sequence[float], timer: Timer) -> Latency:
    calls = [Call(ms) for ms in samples]
    return summarize(
        calls,
        timer=timer,
        cache=CacheState.HOT,
        input_sets=1,
        warmup=2 * WARM_ROUNDS,
        stop_reason="max_seconds",
    )


def _line(record: Record) -> str:
    effect, latency = record.effect, record.lat_ms
    assert effect
    assert latency
    times = f"{milliseconds(effect.baseline.p50)} -> {milliseconds(latency.p50)} ms"
    return f"{effect.phase}  L{effect.level} {effect.module} ({effect.calls} calls)  {times}\n"
