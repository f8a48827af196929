"""Summaries: results of one operator on each device. Times are milliseconds; a speed-up above 1 is faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import (
    CacheState,
    Environment,
    Flag,
    Judged,
    Labelled,
    Provenance,
    Regime,
    Status,
    Timer,
)

SCHEMA = 1

SMALLEST_EFFECT = 0.005
"""A smaller relative difference counts as none, even if it is significant."""

GENERAL = 0.97
"""From this speed-up over the fastest other implementation on, one costs no time at a drawn workload."""

FEWEST_PROCESSES = 3
"""Processes of an implementation that a verdict needs. With two, Student's interval is three times as wide."""


class Verdict(Labelled):
    """How an implementation compares with the baseline, given the interval of the speed-up."""

    BASELINE = "baseline"
    FASTER = "faster", "", "the interval of the speed-up is above 1, and the difference is at least 0.5 %"
    SLOWER = "slower", "", "the interval of the speed-up is below 1, and the difference is at least 0.5 %"
    SAME = "same", "", "the whole interval is within 2 % of 1"
    AMBIGUOUS = (
        "ambiguous",
        "",
        "the interval is too wide for these, the two were timed differently, or by sealed calls the other one is faster",
    )
    SEPARATE = (
        "separate",
        "measured separately",
        "not in one session: the device may have run at another speed",
    )
    FEW_PROCESSES = "few_processes", "no verdict", "one of the two was measured in fewer than three processes"
    """Its interval lacks the variation between processes."""
    NONE = "none", "not comparable", "one of the two has no valid time"

    @classmethod
    def _missing_(cls, value: object) -> Verdict | None:
        # Reports of earlier versions, which `kbt build --since` reads, have words.
        return {"measured separately": cls.SEPARATE, "no verdict": cls.FEW_PROCESSES}.get(str(value))


class CauseKind(Labelled):
    """What differs between two measurements, the most likely cause of another time first."""

    CODE = "code", "", "the code of the implementation's cell"
    TOOLCHAIN = "toolchain", "", "torch, Triton, CUDA, the driver, a package with kernels, or a Hub build"
    OPERATOR = "operator", "", "the operator's module, or the shapes of the workload"
    HARNESS = "harness", "", "the harness: its version, the modules that measure, the timer"
    DEVICE = "device", "", "sentinels or measured peaks differ: another GPU, or other clocks"
    NOTHING = "nothing", "no known difference", "none of these differs between the two records"


class ChangeKind(Labelled):
    """What became of a row, the most important first."""

    FAILS = "fails now"
    SLOWER = "slower"
    FASTER = "faster"
    PASSES = "passes now"
    NEW = "new"
    GONE = "gone"
    SAME = "same", "no change"
    UNSURE = "unsure", "no verdict"
    STALE = "stale", "stale", "its code has changed since it was measured"


class WorkloadSummary(msgspec.Struct, kw_only=True):
    name: str
    dtype: str = ""
    set: str = ""
    """The workload set that it belongs to, such as ``large``; empty in old records."""
    group: str = ""
    """Which of the operator's functions it measures, such as ``SwiGLU``; empty if there is only one."""
    mode: str = ""
    """``bwd`` or ``fwd_bwd``; empty for the forward pass."""
    axes: dict[str, Any] = msgspec.field(default_factory=dict)


class MetricInfo(msgspec.Struct, kw_only=True):
    """A metric that a view shows; ``results/metrics.py`` has its definition."""

    name: str
    """The field of ``Point`` that holds it; without such a field, its key in ``Point.more``."""
    title: str
    unit: str
    """Selects the number format, see ``text.numbers.number``."""
    better: str
    """``lower`` or ``higher``."""
    chart: str = ""
    """Stem of the chart's file; empty if it is not drawn."""
    ranking: bool = True
    description: str = ""
    """How to read its chart."""


class Point(msgspec.Struct, kw_only=True):
    workload: str
    status: Status
    reason: str = ""
    """Why there is no latency, or why it cannot be ranked, in one line."""
    p50_ms: float | None = None
    mean_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    ci_low_ms: float | None = None
    ci_high_ms: float | None = None
    reps: int = 0
    timer: Timer = Timer.UNKNOWN
    cache: CacheState = CacheState.UNKNOWN
    processes: int = 1
    """Number of processes that measured it; the interval includes the differences between them."""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict = Verdict.NONE
    regime: Regime | None = None
    fraction: float | None = None
    """Achieved rate divided by the measured peak that ``ceiling`` names."""
    ceiling: str = ""
    flags: list[Flag] = msgspec.field(default_factory=list)
    limitation: str = ""
    """Which edge cases it refuses and why, in one line."""
    runs: int = 1
    """Number of runs of which it is the latest."""
    device_hot_ms: float | None = None
    host_submit_ms: float | None = None
    e2e_ms: float | None = None
    span_ms: float | None = None
    kernel_ms: float | None = None
    """Of the kernel that takes longest, in a call of several."""
    gb_per_s: float | None = None
    """Counted bytes over the median, in 1e9 bytes per second."""
    tflop_per_s: float | None = None
    compile_ms: float | None = None
    peak_bytes: int | None = None
    absmax: float | None = None
    more: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    """Metrics that have no field of their own, by name."""
    intervals: dict[str, tuple[float, float]] | msgspec.UnsetType = msgspec.UNSET
    """95 % intervals of the host's times, by the metric's name."""
    measured: str = ""

    @property
    def latency(self) -> Estimate | None:
        return Estimate.of(self.p50_ms, self.ci_low_ms, self.ci_high_ms) if self.p50_ms else None

    @property
    def gain(self) -> Estimate | None:
        """The speed-up with its interval."""
        return _gain(self.speedup, self.speedup_low, self.speedup_high)

    def value(self, metric: str) -> float | None:
        more = {} if isinstance(self.more, msgspec.UnsetType) else self.more
        value: float | None = getattr(self, metric, more.get(metric))
        return value

    def estimate(self, metric: str) -> Estimate | None:
        """Return the number of a metric with its 95 % interval, which the latency and the host's times have."""
        if (value := self.value(metric)) is None:
            return None
        if metric == "p50_ms":
            return Estimate.of(value, self.ci_low_ms, self.ci_high_ms)
        known = {} if isinstance(self.intervals, msgspec.UnsetType) else self.intervals
        return Estimate.of(value, *known.get(metric, (None, None)))


class OverOthers(msgspec.Struct, kw_only=True):
    """Speed-ups over the fastest other implementation at drawn workloads that both passed."""

    ratios: list[float]
    """One for each of them, the lowest first."""
    median: float
    share: float
    """Of those that are at least ``GENERAL``."""


class Row(msgspec.Struct, kw_only=True):
    implementation: str
    slug: str
    """``series_slug`` of implementation and device, then the view's key if any: the last part of ids in charts."""
    title: str
    description: str = ""
    family: str = ""
    baseline: bool = False
    rank: int | None = None
    """From 1, among the rows that passed every workload that the baseline passed."""
    status: Status
    """``ok`` if every workload is, else the first other status in workload order."""
    reason: str = ""
    passed: int
    total: int
    speedup: float | None = None
    """Geometric mean over the workloads that both this and the baseline passed."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_workloads: int = 0
    trust: str = ""
    judged: Judged = Judged.IN_PROCESS
    """The least trusted of its records."""
    points: list[Point]
    """One for each of the device's workloads, in their order."""
    environment: Environment = msgspec.field(default_factory=Environment)
    provenance: Provenance = msgspec.field(default_factory=Provenance)
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    drawn: OverOthers | None = None
    """At drawn workloads of the same function and mode on the same device, in its rows in all other views."""

    @property
    def gain(self) -> Estimate | None:
        """The speed-up with its interval."""
        return _gain(self.speedup, self.speedup_low, self.speedup_high)


def _gain(value: float | None, low: float | None, high: float | None) -> Estimate | None:
    return None if value is None else Estimate.of(value, low, high)


class Ratio(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """How much faster one implementation is than another, such as the baseline: above 1 it is faster."""

    value: float | None = None
    """None unless all processes of both ran and were correct."""
    low: float | None = None
    """Lower end of its 95 % interval; None where it is not known."""
    high: float | None = None
    verdict: Verdict = Verdict.NONE
    separate: bool = False
    """Measured at different times: with an interval it is the ratio of their speed-ups over the baseline."""

    @classmethod
    def of(cls, ratio: Estimate, verdict: Verdict, *, separate: bool = False) -> Ratio:
        low, high = ratio.ends
        return cls(value=ratio.value, low=low, high=high, verdict=verdict, separate=separate)

    @property
    def gain(self) -> Estimate | None:
        return _gain(self.value, self.low, self.high)


class Pair(msgspec.Struct, kw_only=True):
    """Two implementations of a view, the first one's speed-up over the second."""

    implementation: str
    over: str
    ratios: list[Ratio]
    """One for each of the view's workloads, in their order."""
    overall: Ratio
    """Geometric mean over the workloads that have one."""


class DeviceSummary(msgspec.Struct, kw_only=True):
    """One view of a device: the results of workloads that are compared with each other.

    Workloads of another set, function of the operator or mode form another view. An implementation without a
    workload in a view has no row in it.
    """

    device: Device
    view: str = ""
    """Title of the view, such as ``SwiGLU · large``; empty for a device's only view."""
    key: str = ""
    """The view in ids and file names, such as ``swiglu-large``; empty for the device's first view."""
    baseline: str = ""
    """Id of the baseline; empty if none ran here."""
    workloads: list[WorkloadSummary]
    ceilings: dict[str, float] = msgspec.field(default_factory=dict)
    """Measured peaks of the device, GB/s or TFLOP/s: medians over the processes."""
    metrics: list[MetricInfo] = msgspec.field(default_factory=list)
    """The metrics that charts and rankings of this view show; empty in summaries of earlier versions."""
    rows: list[Row]
    """Ranked rows, then other rows that ran, then rows that did not run."""
    pairs: list[Pair] = msgspec.field(default_factory=list)
    """Each two rows with a time; a combine cell compares them."""


class Summary(msgspec.Struct, kw_only=True):
    """One operator on every device."""

    schema: int = SCHEMA
    operator: str
    title: str
    devices: list[DeviceSummary]
    """GPUs first, then CPUs, each sorted by slug; the views of a device are adjacent."""
    drawn: list[DeviceSummary] = msgspec.field(default_factory=list)
    """Views of drawn workloads, of all seeds: they are in no ranking."""


class Result(NamedTuple):
    """A point, and what it belongs to."""

    operator: str
    view: DeviceSummary
    row: Row
    workload: WorkloadSummary
    point: Point

    @property
    def reason(self) -> str:
        return self.point.reason or self.row.reason


def results_of(summaries: Iterable[Summary]) -> Iterator[Result]:
    """Yield every point; for a row of a view without workloads a nameless one with the row's reason."""
    for operator, view in ((summary.operator, view) for summary in summaries for view in summary.devices):
        for row in view.rows:
            if not view.workloads:
                point = Point(workload="", status=row.status, reason=row.reason)
                yield Result(operator, view, row, WorkloadSummary(name=""), point)
            for workload, point in zip(view.workloads, row.points, strict=True):
                yield Result(operator, view, row, workload, point)


class Report(msgspec.Struct, kw_only=True):
    """Content of ``report.json``: all summaries of the site."""

    schema: int = SCHEMA
    title: str
    repository: str
    measured: str = ""
    """Timestamp of the newest record; empty if there is none."""
    operators: list[Summary]
    """Summaries, in the order of the front page."""
    models: list[str] = msgspec.field(default_factory=list)
    """Those with a page ``models/<model>.html``, with its calls in ``models/<model>.csv``."""
