"""The vertical axis of a panel, linear or logarithmic: how far it reaches and where it is numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.ticker import LogLocator, MaxNLocator

from kernels_bench_tools.schema.summary import DeviceSummary
from kernels_bench_tools.summarize.chart.spec import Scale


class Axis(NamedTuple):
    """From where to where an axis reaches, and the numbers beside it."""

    low: float
    high: float
    ticks: list[float]


def numbers(view: DeviceSummary, scale: Scale) -> list[float]:
    """Return every number that the axis must reach, ends of intervals and lines included; 1 if there is none."""
    found = [estimate for row in view.rows for point in row.points if (estimate := scale.read(point))]
    ends = [end for estimate in found for end in (estimate if estimate.known else estimate[:1])]
    return [number for number in (*ends, *(line.at for line in scale.lines(view))) if number > 0] or [1.0]


def reads_better_logarithmic(scale: Scale, found: Sequence[float]) -> bool:
    """Return whether the numbers span so much that a linear axis would squeeze the small ones."""
    return max(found) / min(found) >= scale.log_from


def linear_axis(found: Sequence[float]) -> Axis:
    """Return an axis from 0."""
    high = max(found) * 1.1
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(0, high)
    return Axis(0.0, high, _within(ticks, 0.0, high))


def logarithmic_axis(found: Sequence[float]) -> Axis:
    """Return an axis with room around the numbers; all of them must be greater than 0."""
    low, high = min(found) / 1.3, max(found) * 1.3
    spread = high / low
    subs = (1.0, 1.2, 1.5, *range(2, 10)) if spread < 6 else (1.0, 2.0, 5.0) if spread < 2000 else (1.0,)
    return Axis(low, high, _within(LogLocator(subs=subs, numticks=20).tick_values(low, high), low, high))


def tick_text(value: float) -> str:
    """Return a number as it stands beside the axis.

    >>> tick_text(0.05), tick_text(2500.0)
    ('0.05', '2,500')
    """
    return f"{value:,g}" if value < 1e6 else f"{value:g}"


def _within(ticks: Sequence[float], low: float, high: float) -> list[float]:
    # The locators' sums leave tails such as 0.30000000000000004.
    return [float(f"{tick:.6g}") for tick in ticks if low <= tick <= high]
