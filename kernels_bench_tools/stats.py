"""Medians, ratios and their intervals, with few assumptions about the distribution of samples.

Samples of one process share its memory addresses, clocks and device temperature, and so vary less than samples of
different processes. Published values therefore come from several processes, with a *group* of samples each. Their
interval is Student's, computed from the medians of the groups.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import atan, ceil, comb, cos, exp, hypot, inf, log, pi, sin, sqrt

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.record import TICK_MS
from kernels_bench_tools.records.summary import SMALLEST_EFFECT, Verdict

CONFIDENCE = 0.95
"""Coverage of all intervals in the report."""
HALF_TICK_MS = TICK_MS / 2
"""No interval of a GPU's times is narrower than this to either side."""
_CPU_STRETCH = 6.9646 / 4.3027
"""On a CPU, *faster* and *slower* need an interval of 98 % from three processes, so that noise that is not normally
distributed gives at most 5 % false verdicts."""
SAME_EFFECT = 0.02
"""Two are the same if the interval excludes a larger difference."""

_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Student's 97.5 % quantiles for 1 to 10 degrees of freedom."""
_LEAST_FOR_DRIFT = 9
_LEAST_FOR_TAIL = 20
_LEAST_FOR_TICKS = 5
_GAP = 0.03
_SIDE = 0.1


Groups = Sequence[Sequence[float]]
"""Samples of one quantity, a group for each process."""


@cache
def interval_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Return the 1-based ranks of the two samples that bound the median, or None if n is too small.

    The sorted samples at these ranks enclose the true median with a probability of at least ``confidence``, for
    any distribution: the number of samples below the median is binomial(n, 1/2).

    >>> interval_ranks(30), interval_ranks(100), interval_ranks(5)
    ((10, 21), (40, 61), None)
    """
    tail, low = 0.0, 0
    # Integers, because 2**-n underflows for large n.
    total = 2**n
    while True:
        tail += comb(n, low) / total
        if 1 - 2 * tail < confidence:
            break
        low += 1
    return (low, n + 1 - low) if low >= 1 else None


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of the median of independent samples; None if there are too few."""
    ranks = interval_ranks(len(samples))
    if ranks is None:
        return None
    ordered = sorted(samples)
    return float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1])


def quantiles(samples: Sequence[float], at: Sequence[float]) -> tuple[float, ...]:
    """Return linearly interpolated quantiles of ``samples`` at the given probabilities."""
    import numpy as np  # only what measures needs it: a build in which nothing changed does not

    return tuple(float(value) for value in np.quantile(np.asarray(samples, dtype=np.float64), at))


def median(samples: Sequence[float], tick: float = 0.0) -> float:
    """Return the median of samples that a clock has rounded to its ticks.

    Half of a short kernel's samples may have the same value, so that a single sample can change the plain median
    by a whole tick. The grouped median interpolates within the middle tick. ``tick`` is 0 for the plain median.

    >>> median([3, 3, 3, 4, 4]), round(median([3, 3, 3, 4, 4], 1), 3)
    (3.0, 3.333)
    """
    if tick <= 0 or len(samples) < _LEAST_FOR_TICKS:
        return float(statistics.median(samples))
    ticks = [round(sample / tick) for sample in samples]
    offset = statistics.median(sample - at * tick for sample, at in zip(samples, ticks, strict=True))
    return statistics.median_grouped(ticks, 1.0) * tick + offset


def drift(samples: Sequence[float]) -> float | None:
    """Return the median of the last third over that of the first third, minus 1; None for fewer than nine samples."""
    if len(samples) < _LEAST_FOR_DRIFT:
        return None
    third = len(samples) // 3
    first, last = statistics.median(samples[:third]), statistics.median(samples[-third:])
    return last / first - 1 if first > 0 else None


def tail_ratio(samples: Sequence[float]) -> float | None:
    """Return the 99th percentile divided by the median; None for fewer than twenty samples."""
    if len(samples) < _LEAST_FOR_TAIL:
        return None
    middle, tail = quantiles(samples, (0.5, 0.99))
    return tail / middle if middle > 0 else None


def is_bimodal(samples: Sequence[float]) -> bool:
    """Return whether a gap of over 3 %, wider than either side's interquartile range, splits off a tenth of them."""
    side = max(2, ceil(_SIDE * len(samples)))
    if len(samples) < 2 * side or min(samples) <= 0:
        return False
    ordered = sorted(map(log, samples))
    gaps = [above - below for below, above in pairwise(ordered)][side - 1 : len(samples) - side]
    cut = side + gaps.index(max(gaps))
    quartiles = (quantiles(part, (0.25, 0.75)) for part in (ordered[:cut], ordered[cut:]))
    return max(gaps) > max(log(1 + _GAP), *(third - first for first, third in quartiles))


def hierarchical_median(groups: Groups) -> Estimate:
    """Return the median of the groups' medians and its interval; raise ``ValueError`` for samples that are not positive.

    For one group, the interval is that of its order statistics, and does not include differences between
    processes. For several, it is Student's interval of the mean of their log-medians, and at least as wide as the
    variation within groups implies. A bootstrap over three groups would never leave their range and cover the true
    value in 75 % of cases only; resampling within groups as well would count their variation twice.
    """
    medians = _medians(groups)
    value = float(statistics.median(medians))
    if len(groups) == 1:
        return Estimate(value, *(median_interval(groups[0]) or (0.0, inf)))
    return _across([*map(log, medians)], log(value), *_within(groups))


def ratio_interval(numerator: Groups, denominator: Groups) -> Estimate:
    """Return the ratio of two hierarchical medians and its interval; in ratios of pairs, common disturbances cancel."""
    above, below = hierarchical_median(numerator), hierarchical_median(denominator)
    if len(numerator) != len(denominator) or len(numerator) == 1:
        return ratio_of(above, below)
    pairs = zip(_medians(numerator), _medians(denominator), strict=True)
    ratios = [log(ours / theirs) for ours, theirs in pairs]
    (down, up), (other_down, other_up) = _within(numerator), _within(denominator)
    return _across(ratios, log(above.value / below.value), hypot(down, other_up), hypot(up, other_down))


def ratio_of(numerator: Estimate, denominator: Estimate) -> Estimate:
    """Return the ratio of two independent estimates and its interval; log-distances add up like deviations (MOVER)."""
    ratio = numerator.value / denominator.value
    if not (numerator.known and denominator.known):
        return Estimate(ratio, 0.0, inf)
    down = hypot(log(numerator.value / numerator.low), log(denominator.high / denominator.value))
    up = hypot(log(numerator.high / numerator.value), log(denominator.value / denominator.low))
    return Estimate(ratio, ratio * exp(-down), ratio * exp(up))


def widened(estimate: Estimate, share: float) -> Estimate:
    """Return the estimate with an interval of at least plus and minus ``share`` of its value."""
    value, low, high = estimate
    return Estimate(value, min(low, value * (1 - share)), max(high, value * (1 + share)))


def verdict_of(ratio: Estimate, *, on_cpu: bool = False) -> Verdict:
    """Return the verdict for a speed-up with its interval, given enough processes; ambiguous without an interval."""
    if not ratio.known:
        return Verdict.AMBIGUOUS
    nearest = ratio.low if ratio.value > 1 else ratio.high
    reach = (_CPU_STRETCH if on_cpu else 1.0) * abs(log(ratio.value / nearest))
    if reach < abs(log(ratio.value)) and max(ratio.value, 1 / ratio.value) - 1 >= SMALLEST_EFFECT:
        return Verdict.FASTER if ratio.value > 1 else Verdict.SLOWER
    within = ratio.low >= 1 / (1 + SAME_EFFECT) and ratio.high <= 1 + SAME_EFFECT
    return Verdict.SAME if within else Verdict.AMBIGUOUS


def student(freedom: int) -> float:
    """Return Student's two-sided 95 % quantile for at least one degree of freedom."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def student_tail(t: float, freedom: int) -> float:
    """Return how likely Student's t is at least this far from 0, for at least one degree of freedom.

    >>> round(student_tail(4.3027, 2), 4), round(student_tail(3.1824, 3), 4)
    (0.05, 0.05)
    """
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle), cos(angle) if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for power in range(2 + odd, freedom, 2):
        term *= cos(angle) ** 2 * (power - 1) / power
        total += term
    inside = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return max(1 - inside, 0.0)


def _medians(groups: Groups) -> list[float]:
    if not groups or any(len(group) == 0 or min(group) <= 0 for group in groups):
        raise ValueError("an interval across processes needs positive samples from each")
    return [statistics.median(group) for group in groups]


def _across(logs: Sequence[float], centre: float, down: float, up: float) -> Estimate:
    """Return Student's interval of the mean, and at least ``down`` and ``up`` around the centre."""
    freedom, mean = len(logs) - 1, sum(logs) / len(logs)
    half = student(freedom) * hypot(*(each - mean for each in logs)) / sqrt(freedom * len(logs))
    low, high = min(mean - half, centre - down), max(mean + half, centre + up)
    return Estimate(exp(centre), exp(low), exp(high))


def _within(groups: Groups) -> tuple[float, float]:
    """Return the interval half-widths that the variation within groups implies, in logarithms: below and above."""
    down, up = [], []
    for group in groups:
        interval = median_interval(group)
        if interval is not None:
            middle = float(statistics.median(group))
            down.append(log(middle / interval[0]))
            up.append(log(interval[1] / middle))
    return hypot(*down) / len(groups), hypot(*up) / len(groups)
