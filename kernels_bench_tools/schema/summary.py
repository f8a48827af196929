"""Summaries: what the records of one operator say, device by device, as the pages and exports show it.

SUMMARIZE decides here who may be ranked; PUBLISH only prints. Times are milliseconds, and speed-up is
baseline divided by candidate, so more than 1 is faster than the baseline.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import CacheState, Environment, Flag, Provenance, Regime, Status, Timer

SCHEMA = 1


class Verdict(StrEnum):
    """How a candidate compares with the baseline, seen through both intervals."""

    BASELINE = "baseline"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    AMBIGUOUS = "ambiguous"
    NONE = "none"
    """Not comparable: one of the two has no rank."""


class WorkloadSummary(msgspec.Struct, kw_only=True):
    """A workload and its axes."""

    name: str
    dtype: str = ""
    set: str = ""
    """The named set that it belongs to, such as ``large``; empty in old records."""
    group: str = ""
    """Which of the operator's functions it is of, such as ``SwiGLU``; empty where there is only one."""
    mode: str = ""
    """``bwd`` or ``fwd_bwd``; empty for the forward pass."""
    axes: dict[str, Any] = msgspec.field(default_factory=dict)


class Point(msgspec.Struct, kw_only=True):
    """One implementation on one workload."""

    workload: str
    status: Status
    reason: str = ""
    """Why there is no latency or no rank, in one line."""
    p50_ms: float | None = None
    ci_low_ms: float | None = None
    ci_high_ms: float | None = None
    reps: int = 0
    timer: Timer = Timer.UNKNOWN
    cache: CacheState = CacheState.UNKNOWN
    processes: int = 1
    """Fresh processes that measured it; the interval covers how they differ."""
    speedup: float | None = None
    speedup_low: float | None = None
    """Lower end of the interval of the speed-up."""
    speedup_high: float | None = None
    verdict: Verdict = Verdict.NONE
    regime: Regime | None = None
    fraction: float | None = None
    """Achieved rate over that of ``ceiling``, measured in the same process."""
    ceiling: str = ""
    flags: list[Flag] = msgspec.field(default_factory=list)
    device_hot_ms: float | None = None
    host_submit_ms: float | None = None
    e2e_ms: float | None = None
    span_ms: float | None = None
    gb_per_s: float | None = None
    """Counted bytes over the median, in 1e9 bytes per second."""
    tflop_per_s: float | None = None
    compile_ms: float | None = None
    peak_bytes: int | None = None
    absmax: float | None = None
    measured: str = ""
    """Timestamp of the record."""


class Row(msgspec.Struct, kw_only=True):
    """One implementation on one device."""

    implementation: str
    slug: str
    """``series_slug`` of implementation and device, then the view's key if it has one: the chart's ids end with it."""
    title: str
    description: str = ""
    family: str = ""
    baseline: bool = False
    rank: int | None = None
    """From 1, over the rows that passed every workload that the baseline passed."""
    status: Status
    """``ok`` if every workload is, else the first other status in the order of the workloads."""
    reason: str = ""
    passed: int
    total: int
    speedup: float | None = None
    """Geometric mean over the workloads that both this and the baseline passed."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_workloads: int = 0
    trust: str = ""
    points: list[Point]
    """In the order of the device's workloads, one for each."""
    environment: Environment = msgspec.field(default_factory=Environment)
    provenance: Provenance = msgspec.field(default_factory=Provenance)
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class DeviceSummary(msgspec.Struct, kw_only=True):
    """What was measured, or tried, on one device, of workloads that are compared with each other.

    The workloads of another set, of another function of the operator or of another mode are another view of the
    same device. An implementation that has no workload in a view has no row there.
    """

    device: Device
    view: str = ""
    """What people call this part, such as ``SwiGLU · large``; empty for a device's only view."""
    key: str = ""
    """The view as ids and file names have it, such as ``swiglu-large``; empty for the device's first view."""
    baseline: str = ""
    """Id of the implementation that divides the speed-ups; empty if none ran here."""
    workloads: list[WorkloadSummary]
    ceilings: dict[str, float] = msgspec.field(default_factory=dict)
    """What the device reached, GB/s or TFLOP/s: the median over its processes."""
    rows: list[Row]
    """Ranked rows first, then the baseline's peers without a rank, then what did not run."""


class Summary(msgspec.Struct, kw_only=True):
    """One operator on every device."""

    schema: int = SCHEMA
    operator: str
    title: str
    devices: list[DeviceSummary]
    """GPUs first, then CPUs, each in the order of their slugs; the views of a device follow one another."""


class Report(msgspec.Struct, kw_only=True):
    """The whole site as data: what ``report.json`` holds."""

    schema: int = SCHEMA
    title: str
    repository: str
    """URL of the repository; empty if it has none."""
    measured: str = ""
    """Timestamp of the youngest record; empty if there is none."""
    operators: list[Summary]
    """In the order of the front page."""
