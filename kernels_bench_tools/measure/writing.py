"""Turn a trial into the record that a report is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from kernels_bench_tools.devices import Device
from kernels_bench_tools.measure.environment import describe_environment, describe_provenance
from kernels_bench_tools.measure.operator import Workload
from kernels_bench_tools.measure.trial import Trial
from kernels_bench_tools.records import SCHEMA, Record, Status
from kernels_bench_tools.runs import CellContext


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What all records of one run share."""

    run: str
    operator: str
    implementation: str
    device: Device
    torch_name: str
    tags: dict[str, str] = field(default_factory=dict)
    context: CellContext = field(default_factory=CellContext)


def make_record(identity: Identity, workload: Workload, trial: Trial) -> Record:
    """Return the record of a trial, stamped with the time and environment of now."""
    found, verdict = trial.measurement, trial.verdict
    return Record(
        schema=SCHEMA,
        ts=datetime.now(UTC).isoformat(timespec="milliseconds"),
        run=identity.run,
        op=identity.operator,
        impl=identity.implementation,
        tags={**identity.tags, **_timing_tags(trial)},
        wl=workload.describe(identity.device.kind),
        env=describe_environment(identity.device, identity.torch_name),
        device=identity.device,
        status=trial.status,
        ok=trial.status is Status.OK,
        lat_ms=found.latency if found else None,
        span_ms=found.span_ms if found else None,
        kernels=found.kernels if found else [],
        compile_ms=trial.compile_ms,
        peak_bytes=trial.peak_bytes,
        work=trial.work,
        absmax=verdict.absmax if verdict else None,
        corr=verdict.corr if verdict else {},
        err=trial.failure,
        provenance=describe_provenance(identity.context, workload.seed),
    )


def _timing_tags(trial: Trial) -> dict[str, str]:
    found = trial.measurement
    if found is None:
        return {}
    tags = {"timer_note": found.note} if found.note else {}
    if found.events_ms is not None and found.span_ms is not None:
        tags["events_over_cupti"] = f"{found.events_ms / found.latency.p50:.3f}"
    return tags
