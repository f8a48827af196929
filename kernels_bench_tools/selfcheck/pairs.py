"""Pairs of measurements whose verdict is known: of one case and itself, and of a slowed case and the plain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernels_bench_tools.selfcheck.cases import Case
from kernels_bench_tools.selfcheck.fresh import time_afresh
from kernels_bench_tools.selfcheck.processes import Series
from kernels_bench_tools.stats import Groups

PER_SIDE = 3
"""Processes that measure a candidate for the report, and as many others that measure its baseline."""
ENOUGH_PROCESSES = 2 * PER_SIDE


@dataclass(frozen=True)
class Pair:
    """A candidate and its baseline, measured ``PER_SIDE`` times each. Microseconds."""

    name: str
    """The candidate's case."""
    candidate: Groups
    baseline: Groups


@dataclass(frozen=True)
class Pairs:
    """Pairs, and how they were made."""

    pairs: list[Pair] = field(default_factory=list)
    how: str = ""
    """A sentence."""


def pairs_of_processes(
    series: Mapping[str, Sequence[Series]], cases: Sequence[tuple[str, str]], count: int
) -> Pairs:
    """Return pairs of what different fresh processes found: as the report compares.

    Args:
        series: What each process found for each case; of ``ENOUGH_PROCESSES`` or more.
        cases: Candidate and baseline; the pairs are spread evenly over them.
        count: How many pairs.
    """
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


def pairs_of_rounds(candidate: Case, baseline: Case, device: str, count: int, calls: int) -> Pairs:
    """Return pairs that this process measures in turns, A B, B A, A B, with allocations of each turn's own.

    What else differs between processes, such as their clocks, is not in them.

    Args:
        candidate: One case.
        baseline: The other.
        device: Where they run.
        count: How many pairs.
        calls: How many calls are timed each time.
    """
    source = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        sides: tuple[list[list[float]], list[list[float]]] = ([], [])
        for turn in range(PER_SIDE):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                sides[side].append(time_afresh((candidate, baseline)[side], device, source, calls))
        pairs.append(Pair(candidate.name, *sides))
    how = f"In one process, for want of {ENOUGH_PROCESSES} fresh ones: each pair is {PER_SIDE} turns of both"
    return Pairs(pairs, f"{how}, with buffers allocated for each turn.")
