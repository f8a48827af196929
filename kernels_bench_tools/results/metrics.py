"""Metrics: each is an entry of ``METRICS``, and so a column of CSV and rankings; with a ``chart`` it is also drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.record import Record, Regime, Status, Timing
from kernels_bench_tools.records.summary import DeviceSummary, MetricInfo, Point, Verdict
from kernels_bench_tools.text.numbers import percent, times_with_interval, with_unit
from kernels_bench_tools.text.tables import grouped

_WITH_INTERVAL = ("host_submit", "e2e", "back_to_back", "sealed", "sustained")


class Line(NamedTuple):
    """A horizontal line of a chart."""

    at: float
    label: str = ""


class Metric(NamedTuple):
    """A number of an implementation on a workload; :class:`MetricInfo` has the same fields as far as pages need them."""

    name: str
    title: str
    unit: str
    better: Literal["lower", "higher"]
    from_record: Callable[[Record], float | None] | None = None
    """None for a number that ``compare`` computes. The record is the merged one where there are several processes."""
    chart: str = ""
    """Stem of the chart's file. Of the metrics that share a chart, each view shows the one that applies to most of its points."""
    file: bool = True
    """Whether its chart is also a file; if not, only a page draws it, in the panel of the view."""
    applies: Callable[[Point], bool] = lambda _: True
    interval: Callable[[Point], Estimate | None] | None = None
    """Returns it with its interval; None for the interval that the point has by its name."""
    lines: Callable[[DeviceSummary], Sequence[Line]] = lambda _: ()
    log_from: float = 10.0
    """The axis is logarithmic where the largest number is at least this many times the smallest."""
    text: Callable[[Point], str] | None = None
    """Format in text tables; None for the number with its unit."""
    csv: str | None = None
    """Title of the CSV column: empty for no column, None for title and unit."""
    csv_divisor: float = 1
    ranking: bool = True
    description: str = ""

    @property
    def label(self) -> str:
        return self.title if self.unit in {"", "fraction"} else f"{self.title} ({self.unit})"

    @property
    def csv_title(self) -> str:
        return self.label if self.csv is None else self.csv

    def csv_value(self, point: Point) -> float | None:
        value = point.value(self.name)
        return None if value is None else value / self.csv_divisor

    def estimate(self, point: Point) -> Estimate | None:
        """Return number and interval for a chart; None if the point did not pass or has no number."""
        if not has_passed(point):
            return None
        return self.interval(point) if self.interval else point.estimate(self.name)

    def print(self, point: Point) -> str:
        if self.text is not None:
            return self.text(point)
        value = point.value(self.name)
        return "" if value is None else with_unit(value, self.unit)

    def info(self) -> MetricInfo:
        return MetricInfo(**{name: getattr(self, name) for name in MetricInfo.__struct_fields__})


def has_passed(point: Point) -> bool:
    return point.status.passed and point.p50_ms is not None


def set_metrics(point: Point, record: Record) -> None:
    more = {}
    for metric in METRICS:
        value = metric.from_record(record) if metric.from_record else None
        if metric.name in Point.__struct_fields__:
            if metric.from_record:
                setattr(point, metric.name, value)
        elif value is not None:
            more[metric.name] = value
    point.more = more or msgspec.UNSET
    timings = {f"{name}_ms": _timing(record, name) for name in _WITH_INTERVAL}
    point.intervals = {
        name: (timing.ci_low, timing.ci_high)
        for name, timing in timings.items()
        if timing and timing.ci_low is not None and timing.ci_high is not None
    } or msgspec.UNSET


def shown_metrics(points: Iterable[Point]) -> list[Metric]:
    known = list(points)
    groups = grouped((metric.chart or metric.name, metric) for metric in METRICS)
    return [max(group, key=lambda it: sum(map(it.applies, known))) for group in groups.values()]


def passed_points(view: DeviceSummary) -> list[Point]:
    return [point for row in view.rows for point in row.points if has_passed(point)]


def chart_files() -> list[str]:
    """Return the stems of the charts' files, in the order of their metrics."""
    return list(dict.fromkeys(metric.chart for metric in METRICS if metric.chart and metric.file))


def chart_title(chart: str) -> str:
    return " or ".join(dict.fromkeys(metric.title.lower() for metric in METRICS if metric.chart == chart))


def csv_metrics() -> list[Metric]:
    return [metric for metric in METRICS if metric.csv_title]


def metric_infos(view: DeviceSummary) -> list[MetricInfo]:
    """Return the metrics of a view for its summary, those with a chart first; times besides the median only where they were measured."""
    points = [point for row in view.rows for point in row.points]
    shown = [
        metric
        for metric in shown_metrics(passed_points(view))
        if metric.file or any(point.value(metric.name) is not None for point in points)
    ]
    return [metric.info() for metric in sorted(shown, key=lambda metric: not metric.chart)]


def view_metrics(view: DeviceSummary) -> dict[str, Metric]:
    """Return the metric that a view shows in each chart, by the chart's name."""
    return {metric.chart: metric for metric in shown_metrics(passed_points(view)) if metric.chart}


def _per_second(amount: float, record: Record) -> float | None:
    """Return ``amount`` per second of the median; None for a wrong answer, which did other work."""
    if record.outcome is not Status.OK or not record.lat_ms or record.lat_ms.p50 <= 0 or amount <= 0:
        return None
    return amount / (record.lat_ms.p50 / 1e3)


def _gb_per_s(record: Record) -> float | None:
    # A call that hardly takes longer than a launch has no bandwidth.
    if not record.work or record.regime is Regime.LAUNCH:
        return None
    return _per_second(record.work.bytes_moved / 1e9, record)


def _timing(record: Record, name: str) -> Timing | None:
    timing: Timing | None = getattr(record.quantities, name) if record.quantities else None
    return timing


def _quantity(name: str) -> Callable[[Record], float | None]:
    return lambda record: timing.p50 if (timing := _timing(record, name)) else None


def _beside(name: str, title: str, csv: str, description: str) -> Metric:
    """Return a time besides the median, which has a chart on pages only."""
    return Metric(
        *(f"{name}_ms", title, "ms", "lower", _quantity(name), name),
        file=False,
        csv=csv,
        ranking=False,
        description=description,
    )


def _of_rate(name: str) -> Callable[[Point], Estimate | None]:
    """Return what returns a rate with its interval: the time's, inverted."""

    def interval(point: Point) -> Estimate | None:
        rate, time = getattr(point, name), point.latency
        if rate is None or time is None or not time.known:
            return None if rate is None else Estimate.of(rate, None, None)
        return Estimate(rate, rate * time.value / time.high, rate * time.value / time.low)

    return interval


def _peak(name: str, unit: str) -> Callable[[DeviceSummary], Sequence[Line]]:
    """Return the line of the measured peak that bounds most points: the device's, or the one of their own mix."""

    def lines(view: DeviceSummary) -> Sequence[Line]:
        bound = [
            (point.ceiling, rate / point.fraction)
            for point in passed_points(view)
            if point.ceiling.startswith("matmul") == (unit == "TFLOP/s")
            and point.fraction
            and (rate := getattr(point, name))
        ]
        if not bound:
            return ()
        peak = Counter(peak for peak, _ in bound).most_common(1)[0][0]
        at = view.ceilings.get(peak) or median(value for other, value in bound if other == peak)
        title = {"mix": "same mix of reads and writes"}.get(peak, peak.replace("_", " "))
        return (Line(at, f"{title}: {at:,.0f} {unit}"),)

    return lines


def _latency_text(point: Point) -> str:
    """Return the median and how far its interval reaches: ``0.1405 ms ±0.2 %``."""
    text, time = with_unit(point.p50_ms, "ms"), point.latency
    if time is None or not time.known:
        return text
    return f"{text} ±{100 * max(time.high - time.value, time.value - time.low) / time.value:.1f} %"


def speedup_text(point: Point) -> str:
    if point.speedup is None:
        return ""
    text = times_with_interval(point.gain)
    return text if point.verdict is Verdict.NONE else f"{text} {point.verdict.label}"


def _fraction_text(point: Point) -> str:
    """Return the fraction and of which peak, as ``91 % of copy``; the regime where no fraction is known."""
    if point.fraction is not None:
        return f"{percent(point.fraction)} of {point.ceiling}"
    return point.regime.value if point.regime else ""


LATENCY = Metric(
    *("p50_ms", "Latency", "ms", "lower", lambda it: it.lat_ms and it.lat_ms.p50, "latency"),
    text=_latency_text,
    csv="",
    ranking=False,
    description="The median time of one call with cold caches, over several processes; the band is its 95 % interval. "
    "Lines connect correct results only. A failed workload is a cross on the axis, and the legend marks implementations "
    "that passed none of them.",
)
SPEEDUP = Metric(
    *("speedup", "Speed-up", "x", "higher", None, "speedup"),
    interval=lambda point: point.gain,
    lines=lambda _: (Line(1.0),),
    text=speedup_text,
    csv="",
    ranking=False,
    description="The baseline's median divided by the implementation's: above 1 is faster than the baseline. Where the band "
    "includes 1, the difference is not significant.",
)
BANDWIDTH = Metric(
    *("gb_per_s", "Bandwidth", "GB/s", "higher", _gb_per_s, "rate"),
    applies=lambda point: point.regime is not Regime.COMPUTE,
    interval=_of_rate("gb_per_s"),
    lines=_peak("gb_per_s", "GB/s"),
    log_from=40.0,
    description="The bytes that a call has to move, divided by its median. The dashed line is the measured peak of the same "
    "processes. Launch-bound calls have no bandwidth.",
)
ARITHMETIC = Metric(
    *("tflop_per_s", "Arithmetic", "TFLOP/s", "higher"),
    from_record=lambda it: _per_second(it.work.flops / 1e12, it) if it.work else None,
    chart="rate",
    applies=lambda point: point.regime is Regime.COMPUTE,
    interval=_of_rate("tflop_per_s"),
    lines=_peak("tflop_per_s", "TFLOP/s"),
    log_from=40.0,
    description="The operations that a call has to do, divided by its median. The dashed line is the measured peak of the "
    "same processes.",
)
FRACTION = Metric(
    *("fraction", "Fraction of peak", "fraction", "higher"),
    from_record=lambda it: it.roofline.fraction if it.roofline and it.outcome is Status.OK else None,
    chart="fraction",
    interval=_of_rate("fraction"),
    lines=lambda _: (Line(1.0, "measured peak"),),
    log_from=inf,
    text=_fraction_text,
    csv="Fraction of Ceiling (1)",
    description="The rate divided by the measured peak that bounds the call: memory at the same mix of reads and writes, or "
    "a matmul of the same type. At 1, a call can be faster only by doing less work.",
)

HOST_SUBMIT = _beside(
    *("host_submit", "Host submit", "Host Submit (ms)"),
    "The time that the calling thread needs to submit one call while the device is busy: median over several "
    "processes, with its 95 % interval. If a call takes less time on the device, the device idles between calls.",
)
END_TO_END = _beside(
    *("e2e", "End to end", "End to End (ms)"),
    "The time from a call on an idle device until the device is done, caches warm: median over several processes, "
    "with its 95 % interval. It includes the host's time to submit the call.",
)
BACK_TO_BACK = _beside(
    *("back_to_back", "Back to back", "Back to Back (ms)"),
    "The time of a call among others that are queued on the device without a gap, caches warm, as in a CUDA graph. It "
    "is measured with the judge's clock and includes about 1 us between successive kernels.",
)
SEALED = _beside(
    *("sealed", "Sealed", "Sealed (ms)"),
    "The device time of a call by the judge's clock, caches cold. Its inputs are made right before it, and its output is digested "
    "right after it. It includes about 1.5 us before each kernel.",
)
SUSTAINED = _beside(
    *("sustained", "Sustained", "Sustained (ms)"),
    "The steady-state time of a call in a series of calls without pauses, with rotated inputs. Under this load the device "
    "runs at lower clocks. If the host takes longer than the device, it is the host's time.",
)
ENERGY = Metric(
    *("joules", "Energy of a call", "J", "lower"),
    from_record=lambda it: timing.joules if (timing := _timing(it, "sustained")) else None,
    chart="joules",
    file=False,
    csv="Energy (J)",
    ranking=False,
    description="Energy of one sustained call by the GPU's energy counter, which includes the whole board.",
)

METRICS: tuple[Metric, ...] = (
    *(LATENCY, SPEEDUP, BANDWIDTH, ARITHMETIC),
    Metric("compile_ms", "First call", "ms", "lower", lambda it: it.compile_ms, csv="Compile (ms)"),
    Metric(
        *("peak_bytes", "Peak memory", "B", "lower", lambda it: it.peak_bytes),
        csv="Peak Mem (MB)",
        csv_divisor=2**20,
    ),
    FRACTION,
    Metric(
        *("kernel_ms", "Largest kernel", "ms", "lower"),
        from_record=lambda it: max(kernel.ms for kernel in it.kernels) if len(it.kernels) > 1 else None,
        csv="",
        ranking=False,
    ),
    Metric("device_hot_ms", "Hot", "ms", "lower", _quantity("device_hot"), ranking=False),
    *(HOST_SUBMIT, END_TO_END, BACK_TO_BACK, SEALED, SUSTAINED, ENERGY),
    Metric("absmax", "Max error", "", "lower", lambda it: it.absmax, csv=""),
)
