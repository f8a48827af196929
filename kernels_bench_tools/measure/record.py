"""Turn a trial into the record that a report is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from kernels_bench_tools.hub import loaded_kernels
from kernels_bench_tools.measure.device.environment import (
    describe_affinity,
    describe_environment,
    describe_provenance,
)
from kernels_bench_tools.measure.integrity.guard import TRUST
from kernels_bench_tools.measure.operator import Workload
from kernels_bench_tools.measure.timing.measure import Measurement
from kernels_bench_tools.measure.trial import Trial
from kernels_bench_tools.schema.build import CellContext
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import (
    SCHEMA,
    FirstCall,
    Kernel,
    Quantities,
    Record,
    Roofline,
    Status,
    Timing,
)

DIGITS = 5
"""Significant digits of figures beside the headline: a fiftieth of what gets a verdict."""
ERROR_DIGITS = 4
LONGEST_NAME = 120
"""Characters that are kept of a kernel's name: templates fill kilobytes."""


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
    import_ms: float | None = None
    load_ms: float | None = None


def make_record(identity: Identity, workload: Workload, trial: Trial) -> Record:
    """Return the record of a trial, stamped with the time and environment of now."""
    found, verdict, judgement = trial.measurement, trial.verdict, trial.judgement
    return Record(
        schema=SCHEMA,
        ts=datetime.now(UTC).isoformat(timespec="milliseconds"),
        run=identity.run,
        op=identity.operator,
        impl=identity.implementation,
        tags={**identity.tags, **_cpu_tags(identity.device), **_timing_tags(trial)},
        wl=workload.describe(identity.device.kind),
        env=describe_environment(identity.device, identity.torch_name),
        device=identity.device,
        status=trial.status,
        ok=trial.status is Status.OK,
        lat_ms=found.latency if found else None,
        span_ms=rounded(found.span_ms) if found else None,
        kernels=[_short(kernel) for kernel in found.kernels] if found else [],
        compile_ms=rounded(trial.compile_ms),
        peak_bytes=trial.peak_bytes,
        work=trial.work,
        absmax=rounded(verdict.absmax, ERROR_DIGITS) if verdict else None,
        corr=_rounded_values(verdict.corr) if verdict else {},
        err=trial.failure,
        process=identity.context.process,
        quantities=_quantities(found),
        first_call=_first_call(identity, trial),
        clocks=found.clocks if found else None,
        flags=trial.flags,
        regime=judgement.regime if judgement else None,
        roofline=_roofline(judgement.roofline) if judgement else None,
        trust=TRUST if found else "",
        provenance=replace(describe_provenance(identity.context, trial.seed), hub=loaded_kernels()),
    )


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """Return the value to so many significant digits, if there is one."""
    return None if value is None else significant(value, digits)


def significant(value: float, digits: int = DIGITS) -> float:
    """Return the value to so many significant digits."""
    return float(f"{value:.{digits}g}")


def _rounded_values(value: Any) -> Any:
    """Return JSON data whose floats have the digits that an error needs."""
    if isinstance(value, dict):
        return {key: _rounded_values(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded_values(inner) for inner in value]
    return significant(value, ERROR_DIGITS) if isinstance(value, float) else value


def _short(kernel: Kernel) -> Kernel:
    return replace(kernel, name=kernel.name[:LONGEST_NAME], ms=significant(kernel.ms, DIGITS))


def _quantities(found: Measurement | None) -> Quantities | None:
    if found is None or found.quantities is None:
        return None
    given = found.quantities
    return Quantities(
        device_hot=_timing(given.device_hot),
        host_submit=_timing(given.host_submit),
        e2e=_timing(given.e2e),
    )


def _timing(given: Timing | None) -> Timing | None:
    if given is None:
        return None
    low, high = rounded(given.ci_low), rounded(given.ci_high)
    return replace(given, p50=significant(given.p50, DIGITS), ci_low=low, ci_high=high)


def _roofline(given: Roofline | None) -> Roofline | None:
    if given is None:
        return None
    return replace(
        given, value=significant(given.value, DIGITS), fraction=significant(given.fraction, DIGITS)
    )


def _first_call(identity: Identity, trial: Trial) -> FirstCall:
    return FirstCall(
        import_ms=rounded(identity.import_ms),
        load_ms=rounded(identity.load_ms),
        first_ms=rounded(trial.compile_ms),
        second_ms=rounded(trial.second_ms),
    )


def _cpu_tags(device: Device) -> dict[str, str]:
    affinity = describe_affinity() if device.kind == "cpu" else ""
    return {"affinity": affinity} if affinity else {}


def _timing_tags(trial: Trial) -> dict[str, str]:
    found = trial.measurement
    if found is None:
        return {}
    tags = {"timer_note": found.note} if found.note else {}
    if found.events_ms is not None and found.span_ms is not None:
        tags["events_over_cupti"] = f"{found.events_ms / found.latency.p50:.3f}"
    return tags
