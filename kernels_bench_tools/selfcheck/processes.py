"""The same calls in several fresh processes: variation of medians, and rates of false and of correct verdicts."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

import msgspec
import numpy as np
import torch

from kernels_bench_tools.measure.timing.measure import measure
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.own_process import python_command
from kernels_bench_tools.records.selfcheck import Check
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.selfcheck.cases import repeated_cases, slowed_case
from kernels_bench_tools.selfcheck.timers import repeat, wait
from kernels_bench_tools.stats import (
    HALF_TICK_MS,
    Groups,
    hierarchical_median,
    ratio_interval,
    verdict_of,
    widened,
)
from kernels_bench_tools.text import plural

MAX_SAMPLES = 30
"""Samples of a record with a steady kernel, which has converged then."""
WARM_UP_SECONDS = 0.8
"""Before the first case, since an idle GPU takes a while to raise its clocks."""
CPU_WARM_UP_SECONDS = 0.1

PER_SIDE = 3
"""Processes that measure a candidate for the report, and as many others that measure its baseline."""
ENOUGH_PROCESSES = 2 * PER_SIDE

NEEDED = {1: 0.5, 2: 0.95, 5: 0.95}
"""Slowdown in percent to the share of pairs in which it must be detected."""
CPU_NEEDED = {5: 0.5}
PAIRS = 50
HOW = (
    f"Each pair is {PER_SIDE} fresh processes beside {PER_SIDE} others, chosen at random: different pairs share some "
    "processes, so they are not independent."
)


class ProcessSeries(msgspec.Struct, frozen=True):
    """Times of one case in one process, in microseconds."""

    median_us: float
    samples_us: list[float]
    """At most ``MAX_SAMPLES`` of them, in order."""


def series_of_processes(count: int, *, quick: bool) -> dict[str, list[ProcessSeries]]:
    """Return the times of each repeated case in ``count`` fresh processes, which run one after the other."""
    found: dict[str, list[ProcessSeries]] = {}
    with temporary_folder() as folder:
        answer = folder / "series.json"
        command = python_command("-m", "kernels_bench_tools.selfcheck", "--child", "series")
        command += ["--output", str(answer), *(["--quick"] if quick else [])]
        for process in range(count):
            numbered = [*command, "--process", str(process)]
            subprocess.run(numbered, check=True, timeout=120, stdout=subprocess.DEVNULL)
            answers = msgspec.json.decode(answer.read_bytes(), type=dict[str, ProcessSeries])
            for name, series in answers.items():
                found.setdefault(name, []).append(series)
    return found


def run_child(device: str, output: Path, *, quick: bool, process: int) -> None:
    """Time the repeated cases like records, with values of this process; write them to ``output``."""
    found: dict[str, ProcessSeries] = {}
    with torch.no_grad():
        warm_up(device)
        for case in repeated_cases(device, quick=quick):
            sets = case.input_sets(device, 1000 * process)
            latency = measure(case.function, sets, device).latency
            samples = thinned([1e3 * ms for ms in latency.raw_times])
            found[case.name] = ProcessSeries(1e3 * latency.p50, samples)
            if device.startswith("cuda"):
                torch.cuda.empty_cache()
    output.write_bytes(msgspec.json.encode(found))


def warm_up(device: str) -> None:
    """Keep the device busy with memory traffic, which does not cause throttling."""
    case = slowed_case(device)
    inputs = case.inputs(device)

    def some() -> None:
        for _ in range(20):
            case.function(*inputs)
        wait(device)

    repeat(some, WARM_UP_SECONDS if device.startswith("cuda") else CPU_WARM_UP_SECONDS)


def thinned(samples: list[float]) -> list[float]:
    """Return at most ``MAX_SAMPLES`` of the samples, evenly spread and in order."""
    if len(samples) <= MAX_SAMPLES:
        return samples
    return [samples[number * len(samples) // MAX_SAMPLES] for number in range(MAX_SAMPLES)]


def variation(medians: list[float]) -> float | None:
    """Return the coefficient of variation; None for fewer than two."""
    return stdev(medians) / fmean(medians) if len(medians) > 1 else None


@dataclass(frozen=True)
class Pair:
    """A candidate and its baseline, measured ``PER_SIDE`` times each. Microseconds."""

    name: str
    """The candidate's case."""
    candidate: Groups
    baseline: Groups


def detection_checks(series: Mapping[str, Sequence[ProcessSeries]], device: str) -> Iterator[Check]:
    """Yield a check of the same function twice, and one for each slowdown; none with too few processes."""
    if min(map(len, series.values()), default=0) < ENOUGH_PROCESSES:
        return
    yield check_same(pairs_of_processes(series, [(name, name) for name in series]), device)
    plain = slowed_case(device).name
    for percent, needed in (NEEDED if device.startswith("cuda") else CPU_NEEDED).items():
        pairs = pairs_of_processes(series, [(slowed_case(device, percent).name, plain)])
        yield check_slowdown(pairs, device, percent, needed)


def check_same(pairs: Sequence[Pair], device: str) -> Check:
    """Check that at most one in twenty pairs of the same case counts as different."""
    wrong = Counter(pair.name for pair in pairs if verdict(pair, device) != 0)
    count, allowed = len(pairs), max(1, len(pairs) // 20)
    named = ", ".join(f"{name} ({times})" for name, times in wrong.items())
    cases = len({pair.name for pair in pairs})
    return Check(
        name="same_function_twice",
        title="No difference between a function and itself",
        expected=f"at most {plural(allowed, 'false verdict')} in {count} pairs",
        found=f"{wrong.total()} of {count}, over {plural(cases, 'call')}",
        passed=wrong.total() <= allowed,
        detail=f"{HOW} False: {named}." if named else HOW,
    )


def check_slowdown(pairs: Sequence[Pair], device: str, percent: int, needed: float) -> Check:
    """Check that a case with ``percent`` more work counts as slower."""
    count = len(pairs)
    found = sum(verdict(pair, device) > 0 for pair in pairs)
    ratio = median(_centre(pair.candidate) / _centre(pair.baseline) for pair in pairs)
    return Check(
        name=f"slowdown_{percent}_percent",
        title=f"A slowdown of {percent} % is detected",
        expected=f"in at least {needed:.0%} of pairs",
        found=f"in {found} of {count}",
        passed=found >= needed * count,
        detail=f"{pairs[0].name} takes {ratio:.4f} times as long. {HOW}",
    )


def verdict(pair: Pair, device: str) -> int:
    """Return 1 if the candidate is slower, -1 if it is faster, 0 otherwise, by the report's rule."""
    ratio = ratio_interval(pair.baseline, pair.candidate)
    half_tick_us = 1e3 * HALF_TICK_MS if device.startswith("cuda") else 0.0
    rounding = half_tick_us / _centre(pair.candidate) + half_tick_us / _centre(pair.baseline)
    return {Verdict.SLOWER: 1, Verdict.FASTER: -1}.get(verdict_of(widened(ratio, rounding)), 0)


def _centre(groups: Groups) -> float:
    return hierarchical_median(groups).value


def pairs_of_processes(
    series: Mapping[str, Sequence[ProcessSeries]], cases: Sequence[tuple[str, str]], count: int = PAIRS
) -> list[Pair]:
    """Return pairs of times from different fresh processes, spread evenly over (candidate, baseline) cases."""
    source = np.random.default_rng(0)
    pairs = []
    for number in range(count):
        candidate, baseline = cases[number % len(cases)]
        chosen = source.permutation(len(series[candidate]))[: 2 * PER_SIDE]
        ours = [series[candidate][process].samples_us for process in chosen[:PER_SIDE]]
        theirs = [series[baseline][process].samples_us for process in chosen[PER_SIDE:]]
        pairs.append(Pair(candidate, ours, theirs))
    return pairs
