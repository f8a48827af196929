"""Records: made from a trial, and written to the file of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kernels_bench_tools.measure.candidate import Description
from kernels_bench_tools.measure.device.environment import describe_affinity
from kernels_bench_tools.measure.judge.guard import TRUST
from kernels_bench_tools.measure.operator import Workload
from kernels_bench_tools.measure.trial import Trial
from kernels_bench_tools.records.build import CellContext
from kernels_bench_tools.records.codec import append_record, write_records
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import SCHEMA, FirstCall, Judged, Record, Status

DIGITS = 5
"""Significant digits of figures beside the headline."""
ERROR_DIGITS = 4
MAX_KERNEL_NAME = 120
"""Characters that are kept of a kernel's name: names of templates can fill kilobytes."""


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
        tags={**info.tags, **({"affinity": affinity} if affinity else {}), **_timing_tags(trial)},
        wl=workload.describe(info.device.kind),
        env=environment,
        device=info.device,
        status=trial.status,
        ok=trial.status is Status.OK,
        judged=info.judged,
        lat_ms=found.latency if found else None,
        span_ms=rounded(found.span_ms) if found else None,
        kernels=[replace(rounded(one), name=one.name[:MAX_KERNEL_NAME]) for one in found.kernels]
        if found
        else [],
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
        trust=TRUST if found else "",
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


def _timing_tags(trial: Trial) -> dict[str, str]:
    found = trial.timing
    if found is None:
        return {}
    tags = {"timer_note": found.note} if found.note else {}
    if found.events_ms is not None and found.span_ms is not None:
        tags["events_over_cupti"] = f"{found.events_ms / found.latency.p50:.3f}"
    return tags


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
            others = self.path.read_bytes()[: self._before]
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
