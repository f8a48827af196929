"""How often two measurements of the same are called different, and how often a known slowdown is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from kernels_bench_tools.schema.selfcheck import Check
from kernels_bench_tools.selfcheck.cases import SLOWDOWNS, slowed_case
from kernels_bench_tools.selfcheck.pairs import (
    ENOUGH_PROCESSES,
    Pair,
    Pairs,
    pairs_of_processes,
    pairs_of_rounds,
)
from kernels_bench_tools.selfcheck.processes import Series, warm_up
from kernels_bench_tools.stats import Groups, hierarchical_median, ratio_interval, widened

# The report's rule for "faster" and "slower"; the layer that writes reports cannot be imported here.
GATE = 0.005
"""The smallest difference that gets a verdict."""
HALF_TICK_US = 0.016
"""NVIDIA's cards count time in ticks of 32 ns: no median is known better than to half of one."""

NEEDED = {1: 0.5, 2: 0.95, 5: 0.95}
"""Per cent of a slowdown, and the share of pairs in which it must be found."""
CPU_NEEDED = {5: 0.5}
PAIRS = 50


@dataclass(frozen=True)
class Rounds:
    """How much one process draws if there are not enough of them."""

    same_pairs: int
    slow_pairs: int
    calls: int
    """Per turn and side."""


CUDA_ROUNDS = Rounds(10, 8, 30)
CPU_ROUNDS = Rounds(6, 4, 20)


def detection_checks(
    series: Mapping[str, Sequence[Series]], device: str, tell: Callable[[str], None]
) -> Iterator[Check]:
    """Yield a check of the same twice, and one for each slowdown.

    Args:
        series: What fresh processes found. If they are fewer than ``ENOUGH_PROCESSES``, this process makes
            the pairs by itself.
        device: Where.
        tell: Is told what is being done.
    """
    cuda = device.startswith("cuda")
    rounds = CUDA_ROUNDS if cuda else CPU_ROUNDS
    enough = min(map(len, series.values()), default=0) >= ENOUGH_PROCESSES
    plain = slowed_case(device)
    tell("the same function twice")
    with torch.no_grad():
        if not enough:
            warm_up(device)
            yield check_same(pairs_of_rounds(plain, plain, device, rounds.same_pairs, rounds.calls), device)
        else:
            yield check_same(pairs_of_processes(series, [(name, name) for name in series], PAIRS), device)
        needed = NEEDED if cuda else CPU_NEEDED
        for percent in (one for one in SLOWDOWNS if one in needed):
            tell(f"a slowdown of {percent} %")
            slow = slowed_case(device, percent)
            if enough:
                pairs = pairs_of_processes(series, [(slow.name, plain.name)], PAIRS)
            else:
                pairs = pairs_of_rounds(slow, plain, device, rounds.slow_pairs, rounds.calls)
            yield check_slowdown(pairs, device, percent, needed[percent])


def check_same(pairs: Pairs, device: str) -> Check:
    """Check that hardly a pair of the same case gets a verdict: one in twenty may."""
    wrong = Counter(pair.name for pair in pairs.pairs if verdict(pair, device) != 0)
    count, allowed = len(pairs.pairs), max(1, len(pairs.pairs) // 20)
    named = ", ".join(f"{name} ({times})" for name, times in wrong.items())
    cases = len({pair.name for pair in pairs.pairs})
    return Check(
        name="same_function_twice",
        title="The same function under two names is the same",
        expected=f"at most {allowed} false verdict{'s' if allowed != 1 else ''} in {count} pairs",
        found=f"{wrong.total()} of {count}, over {cases} call{'s' if cases != 1 else ''}",
        passed=wrong.total() <= allowed,
        detail=f"{pairs.how} False: {named}." if named else pairs.how,
    )


def check_slowdown(pairs: Pairs, device: str, percent: int, needed: float) -> Check:
    """Check that pairs of a case and one with ``percent`` more work are called slower."""
    count = len(pairs.pairs)
    found = sum(verdict(pair, device) > 0 for pair in pairs.pairs)
    ratio = median(_centre(pair.candidate) / _centre(pair.baseline) for pair in pairs.pairs)
    return Check(
        name=f"slowdown_{percent}_percent",
        title=f"A slowdown of {percent} % is found",
        expected=f"in at least {needed:.0%} of pairs",
        found=f"in {found} of {count}",
        passed=found >= needed * count,
        detail=f"{pairs.pairs[0].name} takes {ratio:.4f} times as long. {pairs.how}",
    )


def verdict(pair: Pair, device: str) -> int:
    """Return 1 if the candidate is slower, -1 if it is faster, 0 if neither is sure: as the report would."""
    ratio = ratio_interval(pair.baseline, pair.candidate)
    half_tick = HALF_TICK_US if device.startswith("cuda") else 0.0
    rounding = half_tick / _centre(pair.candidate) + half_tick / _centre(pair.baseline)
    value, low, high = widened(ratio, rounding)
    if max(value, 1 / value) - 1 < GATE or low <= 1 <= high:
        return 0
    return -1 if value > 1 else 1


def _centre(groups: Groups) -> float:
    return hierarchical_median(groups).value
