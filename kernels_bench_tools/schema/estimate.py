"""Figures with their intervals, and their mean: all that who only prints them needs, which is not numpy."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from typing import NamedTuple

SMALLEST_EFFECT = 0.005
"""A smaller difference is none, however narrow its interval."""


class Estimate(NamedTuple):
    """A figure and its 95 % interval, in the figure's unit; an infinite end means that it is not known."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.low > 0 and self.high < inf


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of positive ratios.

    Raises:
        ValueError: There are none, or one is not positive.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError("a geometric mean needs positive ratios")
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios))
