"""Rates of false and of correct verdicts: the same function twice, and known slowdowns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from kernels_bench_tools.schema.selfcheck import Check
from kernels_bench_tools.selfcheck.cases import slowed_case
from kernels_bench_tools.selfcheck.processes import ProcessSeries
from kernels_bench_tools.stats import Groups, hierarchical_median, ratio_interval, widened

# The report's rule for "faster" and "slower": summarize/ cannot be imported here.
MIN_DIFFERENCE = 0.005
"""The smallest difference that counts."""
HALF_TICK_US = 0.016
"""NVIDIA's GPUs count time in ticks of 32 ns: no interval is narrower than half a tick to either side."""
PER_SIDE = 3
"""Processes that measure a candidate for the report, and as many others that measure its baseline."""
ENOUGH_PROCESSES = 2 * PER_SIDE

NEEDED = {1: 0.5, 2: 0.95, 5: 0.95}
"""Slowdown in percent to the share of pairs in which it must be detected."""
CPU_NEEDED = {5: 0.5}
PAIRS = 50


@dataclass(frozen=True)
class Pair:
    """A candidate and its baseline, measured ``PER_SIDE`` times each. Microseconds."""

    name: str
    """The candidate's case."""
    candidate: Groups
    baseline: Groups


@dataclass(frozen=True)
class Pairs:
    """Pairs of measurements."""

    pairs: list[Pair] = field(default_factory=list)
    how: str = ""
    """How they were made, as a sentence."""


def detection_checks(series: Mapping[str, Sequence[ProcessSeries]], device: str) -> Iterator[Check]:
    """Yield a check of the same function twice, and one for each slowdown; none with too few processes."""
    if min(map(len, series.values()), default=0) < ENOUGH_PROCESSES:
        return
    yield check_same(pairs_of_processes(series, [(name, name) for name in series]), device)
    plain = slowed_case(device).name
    for percent, needed in (NEEDED if device.startswith("cuda") else CPU_NEEDED).items():
        pairs = pairs_of_processes(series, [(slowed_case(device, percent).name, plain)])
        yield check_slowdown(pairs, device, percent, needed)


def check_same(pairs: Pairs, device: str) -> Check:
    """Check that at most one in twenty pairs of the same case counts as different."""
    wrong = Counter(pair.name for pair in pairs.pairs if verdict(pair, device) != 0)
    count, allowed = len(pairs.pairs), max(1, len(pairs.pairs) // 20)
    named = ", ".join(f"{name} ({times})" for name, times in wrong.items())
    cases = len({pair.name for pair in pairs.pairs})
    return Check(
        name="same_function_twice",
        title="No difference between a function and itself",
        expected=f"at most {allowed} false verdict{'s' if allowed != 1 else ''} in {count} pairs",
        found=f"{wrong.total()} of {count}, over {cases} call{'s' if cases != 1 else ''}",
        passed=wrong.total() <= allowed,
        detail=f"{pairs.how} False: {named}." if named else pairs.how,
    )


def check_slowdown(pairs: Pairs, device: str, percent: int, needed: float) -> Check:
    """Check that a case with ``percent`` more work counts as slower."""
    count = len(pairs.pairs)
    found = sum(verdict(pair, device) > 0 for pair in pairs.pairs)
    ratio = median(_centre(pair.candidate) / _centre(pair.baseline) for pair in pairs.pairs)
    return Check(
        name=f"slowdown_{percent}_percent",
        title=f"A slowdown of {percent} % is detected",
        expected=f"in at least {needed:.0%} of pairs",
        found=f"in {found} of {count}",
        passed=found >= needed * count,
        detail=f"{pairs.pairs[0].name} takes {ratio:.4f} times as long. {pairs.how}",
    )


def verdict(pair: Pair, device: str) -> int:
    """Return 1 if the candidate is slower, -1 if it is faster, 0 otherwise, by the report's rule."""
    ratio = ratio_interval(pair.baseline, pair.candidate)
    half_tick = HALF_TICK_US if device.startswith("cuda") else 0.0
    rounding = half_tick / _centre(pair.candidate) + half_tick / _centre(pair.baseline)
    value, low, high = widened(ratio, rounding)
    if max(value, 1 / value) - 1 < MIN_DIFFERENCE or low <= 1 <= high:
        return 0
    return -1 if value > 1 else 1


def _centre(groups: Groups) -> float:
    return hierarchical_median(groups).value


def pairs_of_processes(
    series: Mapping[str, Sequence[ProcessSeries]], cases: Sequence[tuple[str, str]], count: int = PAIRS
) -> Pairs:
    """Return pairs of times from different fresh processes, spread evenly over (candidate, baseline) cases."""
    source = np.random.default_rng(0)
    pairs, processes = [], 0
    for number in range(count):
        candidate, baseline = cases[number % len(cases)]
        processes = len(series[candidate])
        chosen = source.permutation(processes)[: 2 * PER_SIDE]
        ours = [series[candidate][process].samples_us for process in chosen[:PER_SIDE]]
        theirs = [series[baseline][process].samples_us for process in chosen[PER_SIDE:]]
        pairs.append(Pair(candidate, ours, theirs))
    how = (
        f"Each pair is {PER_SIDE} fresh processes beside {PER_SIDE} others, chosen at random from {processes}"
    )
    return Pairs(pairs, f"{how}: different pairs share some processes, so they are not independent.")
