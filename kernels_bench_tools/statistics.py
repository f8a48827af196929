"""Statistics of samples that make no assumption about their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb, exp, log

import numpy as np

CONFIDENCE = 0.95
"""Coverage of the intervals that the report shows."""


@cache
def interval_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Return the 1-based ranks of the two samples that bound the median, or None if n is too small.

    The sorted samples at these ranks hold the true median with at least ``confidence``, whatever the
    distribution: the number of samples below the median is binomial(n, 1/2).

    >>> interval_ranks(30), interval_ranks(100), interval_ranks(5)
    ((10, 21), (40, 61), None)
    """
    tail, low = 0.0, 0
    # Scaling by 2**-n would underflow for large n; integer binomials do not.
    total = 2**n
    while True:
        tail += comb(n, low) / total
        if 1 - 2 * tail < confidence:
            break
        low += 1
    return (low, n + 1 - low) if low >= 1 else None


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval of the median, or None if there are too few samples for one.

    Args:
        samples: Independent measurements, in any unit and order.
        confidence: Coverage of the interval.
    """
    ranks = interval_ranks(len(samples), confidence)
    if ranks is None:
        return None
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    return float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1])


def quantiles(samples: Sequence[float], at: Sequence[float]) -> tuple[float, ...]:
    """Return linearly interpolated quantiles of ``samples`` at the given probabilities."""
    return tuple(float(value) for value in np.quantile(np.asarray(samples, dtype=np.float64), at))


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of positive ratios.

    Raises:
        ValueError: There are none, or one is not positive.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError("a geometric mean needs positive ratios")
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios))
