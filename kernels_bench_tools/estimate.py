"""A value with its interval: the one type for medians, ratios and means of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from typing import NamedTuple


class Estimate(NamedTuple):
    """A value and its 95 % interval; an infinite end is unknown."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, low: float | None, high: float | None) -> Estimate:
        return cls(value, low or 0.0, high or inf)

    @property
    def known(self) -> bool:
        return self.low > 0 and self.high < inf

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The interval; Nones where it is not known."""
        return (self.low, self.high) if self.known else (None, None)


def geometric_mean(ratios: Sequence[float]) -> float:
    if not ratios or min(ratios) <= 0:
        raise ValueError("a geometric mean needs positive ratios")
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios))


def geometric_mean_interval(estimates: Sequence[Estimate]) -> Estimate:
    """Return the geometric mean of positive estimates over workloads, between the geometric means of their ends.

    The only interval over several workloads. It holds however their errors are correlated: a slow process is slow on
    all of them, and a clock rounds all of them alike. So it contains Student's interval of the processes' means.
    """
    value = geometric_mean([estimate.value for estimate in estimates])
    if not all(estimate.known for estimate in estimates):
        return Estimate(value, 0.0, inf)
    low, high = (geometric_mean([estimate[at] for estimate in estimates]) for at in (1, 2))
    return Estimate(value, low, high)
