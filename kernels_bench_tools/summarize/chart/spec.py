"""Charts as data: which number they show, on which axis, beside which lines. Drawing is the same for all.

A new one is an entry in ``CHARTS``; ``combine()`` writes it to the file of its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from statistics import median
from typing import Literal, NamedTuple

from kernels_bench_tools.schema.record import Regime, Status
from kernels_bench_tools.schema.summary import DeviceSummary, Estimate, Point

UNKNOWN = (0.0, inf)
"""The interval of a number that has none."""


class Line(NamedTuple):
    """A horizontal line to compare with."""

    at: float
    label: str = ""


class Scale(NamedTuple):
    """What the vertical axis of a panel measures."""

    metric: str
    unit: str
    """Empty for a plain number."""
    better: Literal["lower", "higher"]
    value: Callable[[Point], Estimate | None]
    """The number of a point that passed, with its interval; None if it has none."""
    lines: Callable[[DeviceSummary], Sequence[Line]] = lambda _: ()
    log_from: float = 10.0
    """Ratio of the largest to the smallest number from which the axis is logarithmic."""
    per_time: bool = False
    """Whether the number is so much per time, and so has the interval of the time turned over."""

    @property
    def label(self) -> str:
        """What the axis is called."""
        return f"{self.metric} ({self.unit})" if self.unit else self.metric

    def read(self, point: Point) -> Estimate | None:
        """Return the number of a point; None if the point did not pass, or has no such number."""
        return self.value(point) if passed(point) else None


class Chart(NamedTuple):
    """A figure with a panel for each view."""

    name: str
    """Stem of its file, and part of its id."""
    title: str
    """What it shows, within a sentence."""
    scale: Callable[[DeviceSummary], Scale]
    everywhere: bool = False
    """Whether a view without any number gets a panel, which then tells only who did not run."""

    def shows(self, view: DeviceSummary) -> bool:
        """Return whether the view has a panel."""
        return self.everywhere or has_numbers(self.scale(view), view)


def passed(point: Point) -> bool:
    """Return whether a point may stand for its implementation: it ran, and its answer was right."""
    return point.status is Status.OK and point.p50_ms is not None


def has_numbers(scale: Scale, view: DeviceSummary) -> bool:
    """Return whether any point of a view has a number on this scale."""
    return any(scale.read(point) is not None for row in view.rows for point in row.points)


def _latency(point: Point) -> Estimate | None:
    return None if point.p50_ms is None else _estimate(point.p50_ms, point.ci_low_ms, point.ci_high_ms)


def _speedup(point: Point) -> Estimate | None:
    return None if point.speedup is None else _estimate(point.speedup, point.speedup_low, point.speedup_high)


def _per_time(amount: Callable[[Point], float | None]) -> Callable[[Point], Estimate | None]:
    """Return how to read a number that falls as the time grows: its interval is that of the time, turned over."""

    def value(point: Point) -> Estimate | None:
        found, time = amount(point), _latency(point)
        if found is None or time is None:
            return None
        known = time.known and time.low > 0
        ends = (found * time.value / time.high, found * time.value / time.low) if known else UNKNOWN
        return Estimate(found, *ends)

    return value


def _estimate(value: float, low: float | None, high: float | None) -> Estimate:
    return Estimate(value, *(UNKNOWN if low is None or high is None else (low, high)))


def _gb_per_s(point: Point) -> float | None:
    return point.gb_per_s


def _tflop_per_s(point: Point) -> float | None:
    return point.tflop_per_s


def _fraction(point: Point) -> float | None:
    return point.fraction


def _ceiling(amount: Callable[[Point], float | None], unit: str) -> Callable[[DeviceSummary], Sequence[Line]]:
    """Return how to find the line of the ceiling that binds most points: the device's, or that of their own mix."""

    def lines(view: DeviceSummary) -> Sequence[Line]:
        bound = [
            (point.ceiling, found / point.fraction)
            for point in _passed(view)
            if point.ceiling.startswith("matmul") == (unit == "TFLOP/s")
            and point.fraction
            and (found := amount(point))
        ]
        if not bound:
            return ()
        (name, _), *_rest = Counter(name for name, _ in bound).most_common(1)
        at = view.ceilings.get(name) or median(value for other, value in bound if other == name)
        said = {"mix": "reads and writes mixed as here"}.get(name, name.replace("_", " "))
        return (Line(at, f"{said}: {at:,.0f} {unit}"),)

    return lines


def _passed(view: DeviceSummary) -> list[Point]:
    return [point for row in view.rows for point in row.points if passed(point)]


_RATES_LOG_FROM = 40.0
"""How near to a ceiling, a linear axis shows better."""

LATENCY = Scale("Latency", "ms", "lower", _latency)
SPEEDUP = Scale("Speed-up", "x", "higher", _speedup, lambda _: (Line(1.0),))
BANDWIDTH = Scale(
    *("Bandwidth", "GB/s", "higher", _per_time(_gb_per_s), _ceiling(_gb_per_s, "GB/s")),
    _RATES_LOG_FROM,
    per_time=True,
)
ARITHMETIC = Scale(
    *("Arithmetic", "TFLOP/s", "higher", _per_time(_tflop_per_s), _ceiling(_tflop_per_s, "TFLOP/s")),
    _RATES_LOG_FROM,
    per_time=True,
)
FRACTION = Scale(
    *("Fraction of the ceiling", "", "higher", _per_time(_fraction), lambda _: (Line(1.0, "the ceiling"),)),
    log_from=inf,
    per_time=True,
)


def rate_scale(view: DeviceSummary) -> Scale:
    """Return TFLOP/s for a view whose points are mostly bound by arithmetic, else GB/s."""
    points = _passed(view)
    bound = sum(point.regime is Regime.COMPUTE for point in points)
    return ARITHMETIC if 2 * bound > len(points) else BANDWIDTH


CHARTS = (
    Chart("latency", "latency", lambda _: LATENCY, everywhere=True),
    Chart("speedup", "speed-up over the baseline", lambda _: SPEEDUP),
    Chart("rate", "bandwidth, or arithmetic where that binds", rate_scale),
    Chart("fraction", "fraction of the ceiling that binds", lambda _: FRACTION),
)
"""What ``combine()`` draws, in the order in which it says so."""
