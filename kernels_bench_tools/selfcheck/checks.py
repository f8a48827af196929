"""Checks: empty calls, Nsight Compute's times, and the same calls in several fresh processes."""

from __future__ import annotations

import timeit
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from statistics import fmean, median, stdev
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch

from kernels_bench_tools.measure.timing.cupti import MarkersMissingError, record_activities, retry
from kernels_bench_tools.measure.timing.measure import measure
from kernels_bench_tools.records.selfcheck import Check, KernelAgreement
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.selfcheck.cases import PLAIN, SLOWED_PERCENT, Case, repeated_cases
from kernels_bench_tools.stats import HALF_TICK_MS, Groups, ratio_interval, verdict_of, widened
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import plural

MIN_KERNELS = 20
MIN_KERNEL_US = 1.5
"""Shorter calls are mostly overhead, and are not compared."""
MAX_SAMPLES = 30
"""Samples of a record with a steady kernel, which has converged then."""
WARM_UP_SECONDS = 0.8
"""Before the first case of a process, since an idle GPU takes a while to raise its clocks."""
PER_SIDE = 3
"""Processes that measure a candidate for the report, and as many others that measure its baseline."""
ENOUGH_PROCESSES = 2 * PER_SIDE
NEEDED = 0.95
"""Share of pairs in which a slowdown must be detected."""
PAIRS = 50
HOW = (
    f"Each pair compares {PER_SIDE} fresh processes with {PER_SIDE} others, chosen at random. Pairs share processes, so "
    "they are not independent."
)


def measure_floors(device: str) -> dict[str, float]:
    """Return the overhead of empty calls in microseconds, as medians of 100."""
    ticks = [perf_counter_ns() for _ in range(200)]
    floors = {
        "host_clock": median(later - sooner for sooner, later in pairwise(ticks)) / 1e3,
        "python_call": _host_us(lambda: None),
    }
    if not device.startswith("cuda"):
        return floors
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(100)]
    torch.cuda._sleep(2_000_000)  # so that all are queued before the first one runs
    for start, end in pairs:
        start.record()
        end.record()
    torch.cuda.synchronize()

    def batch() -> None:
        for _ in range(100):
            torch.cuda._sleep(0)

    def kernels() -> list[float]:
        found = record_activities(batch)
        if len(found) != 100:
            raise MarkersMissingError(f"the profiler returned {len(found)} of 100 kernels")
        return [activity.duration_ns / 1e3 for activity in found]

    return floors | {
        "empty_event_pair": median(start.elapsed_time(end) for start, end in pairs) * 1e3,
        "null_kernel": median(retry(kernels, 3)),
        "null_kernel_submit": _host_us(lambda: torch.cuda._sleep(0)),
        "null_kernel_e2e": _host_us(lambda: (torch.cuda._sleep(0), torch.cuda.synchronize())),
    }


def _host_us(call: Callable[[], Any]) -> float:
    return 1e6 * median(timeit.repeat(call, number=1, repeat=100))


def check_floors(floors: dict[str, float], device: str) -> Check:
    """Check that the overhead of an empty call is below the time of the shortest kernels."""
    name, bound = ("null_kernel", 2.0) if device.startswith("cuda") else ("python_call", 10.0)
    return Check(
        name="floors",
        title="Null-kernel overhead" if device.startswith("cuda") else "Overhead of an empty call",
        expected=f"{name.replace('_', ' ')} below {bound:g} us",
        found=f"{floors[name]:.3g} us",
        passed=floors[name] < bound,
        detail=", ".join(f"{key.replace('_', ' ')} {value:.3g} us" for key, value in floors.items()),
    )


def measure_case(case: Case, device: str) -> KernelAgreement:
    with torch.no_grad():
        measured = measure(case.function, case.input_sets(device), device)
    latency = measured.latency
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    return KernelAgreement(
        name=case.name,
        ours_us=latency.p50 * 1e3,
        ci_low_us=(latency.p50 if latency.ci_low is None else latency.ci_low) * 1e3,
        ci_high_us=(latency.p50 if latency.ci_high is None else latency.ci_high) * 1e3,
        kernels=sum(kernel.count for kernel in measured.kernels),
    )


def check_ncu(kernels: Sequence[KernelAgreement], *, quick: bool) -> Check:
    """Check that enough of our times agree with ncu's, less its overhead for each kernel; list the others."""
    within, wide = list[float](), list[str]()
    for kernel in kernels:
        truth, difference = kernel.truth_us, kernel.difference
        if truth is None or difference is None or truth < MIN_KERNEL_US:
            continue
        if abs(kernel.ours_us - truth) > max(0.3, 0.02 * truth):
            wide.append(f"{kernel.name} {difference:+.1%}")
        else:
            within.append(abs(difference))
    needed = 1 if quick else MIN_KERNELS
    return Check(
        name="ncu_agreement",
        title="Times agree with Nsight Compute",
        expected=f"at least {plural(needed, 'call')} within max(0.3 us, 2 %) of ncu, less its overhead for each kernel",
        found=f"{len(within)} of {len(within) + len(wide)} calls, at most {max(within, default=0.0):.1%} apart",
        passed=len(within) >= needed,
        detail=f"outside the limit: {', '.join(wide)}" if wide else "",
    )


class ProcessSeries(NamedTuple):
    """Times of one case in one process, in microseconds."""

    median_us: float
    samples_us: list[float]
    """At most ``MAX_SAMPLES`` of them, in order."""


def series_of_processes(count: int, device: str, *, quick: bool) -> dict[str, list[ProcessSeries]]:
    """Return the times of each repeated case in ``count`` fresh processes, which run one after the other."""
    found = list[tuple[str, ProcessSeries]]()
    for process in range(count):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found += pool.submit(time_repeated, device, quick=quick, process=process).result().items()
    return grouped(found)


def time_repeated(device: str, *, quick: bool, process: int) -> dict[str, ProcessSeries]:
    """Time the repeated cases like records, with values of this process."""
    found: dict[str, ProcessSeries] = {}
    cuda = device.startswith("cuda")
    with torch.no_grad():
        inputs, end = PLAIN.inputs(device), perf_counter() + WARM_UP_SECONDS
        while cuda and perf_counter() < end:  # memory traffic, which does not cause throttling
            for _ in range(20):
                PLAIN.function(*inputs)
            torch.cuda.synchronize()
        for case in repeated_cases(device, quick=quick):
            latency = measure(case.function, case.input_sets(device, 1000 * process), device).latency
            times, count = latency.raw_times, min(len(latency.raw_times), MAX_SAMPLES)
            samples = [1e3 * times[number * len(times) // count] for number in range(count)]
            found[case.name] = ProcessSeries(1e3 * latency.p50, samples)
            if cuda:
                torch.cuda.empty_cache()
    return found


def variation(medians: list[float]) -> float | None:
    return stdev(medians) / fmean(medians) if len(medians) > 1 else None


def check_processes(kernels: Sequence[KernelAgreement], device: str) -> Check:
    """Check that medians vary little between processes."""
    cuda = device.startswith("cuda")
    spreads, wide = list[float](), list[str]()
    for kernel in kernels:
        if kernel.variation is None:
            continue
        spreads.append(kernel.variation)
        if kernel.variation > (0.1 if not cuda else 0.003 if kernel.ours_us >= 10 else 0.007):
            wide.append(f"{kernel.name} {kernel.variation:.2%}")
    limit = "0.3 % (0.7 % for calls below 10 us)" if cuda else "10 %"
    count = max((len(kernel.process_medians_us) for kernel in kernels), default=0)
    return Check(
        name="processes",
        title="Medians of fresh processes agree",
        expected=f"coefficient of variation of the medians at most {limit}",
        found=f"at most {max(spreads, default=0):.2%} over {count} processes",
        passed=bool(spreads) and not wide,
        detail=f"outside the limit: {', '.join(wide)}" if wide else "",
    )


class Pair(NamedTuple):
    """A candidate and its baseline, measured ``PER_SIDE`` times each. Microseconds."""

    name: str
    """The candidate's case."""
    candidate: Groups
    baseline: Groups


def check_same(pairs: Sequence[Pair], device: str) -> Check:
    """Check that at most one in twenty pairs of the same case counts as different."""
    wrong = Counter(pair.name for pair in pairs if verdict(pair, device) != 0)
    count, allowed = len(pairs), max(1, len(pairs) // 20)
    named = ", ".join(f"{name} ({times})" for name, times in wrong.items())
    return Check(
        name="same_function_twice",
        title="No difference between a function and itself",
        expected=f"at most {plural(allowed, 'false verdict')} in {count} pairs",
        found=f"{wrong.total()} in {count} pairs, of {plural(len({pair.name for pair in pairs}), 'call')}",
        passed=wrong.total() <= allowed,
        detail=f"{HOW} False: {named}." if named else HOW,
    )


def check_slowdown(pairs: Sequence[Pair], device: str, needed: float) -> Check:
    """Check that a case with a little more work counts as slower."""
    count = len(pairs)
    found = sum(verdict(pair, device) > 0 for pair in pairs)
    ratio = median(_centre(pair.candidate) / _centre(pair.baseline) for pair in pairs)
    return Check(
        name=f"slowdown_{SLOWED_PERCENT}_percent",
        title=f"A slowdown of {SLOWED_PERCENT} % is detected",
        expected=f"in at least {needed:.0%} of pairs",
        found=f"in {found} of {count} pairs",
        passed=found >= needed * count,
        detail=f"{pairs[0].name} takes {ratio:.4f} times as long. {HOW}",
    )


def verdict(pair: Pair, device: str) -> int:
    """Return 1 if the candidate is slower, -1 if it is faster, 0 otherwise, by the report's rule."""
    ratio = ratio_interval(pair.baseline, pair.candidate)
    half_tick_us = 1e3 * HALF_TICK_MS if device.startswith("cuda") else 0.0
    rounding = sum(half_tick_us / _centre(side) for side in (pair.candidate, pair.baseline))
    return {Verdict.SLOWER: 1, Verdict.FASTER: -1}.get(verdict_of(widened(ratio, rounding)), 0)


def _centre(groups: Groups) -> float:
    return median(map(median, groups))


def pairs_of_processes(
    series: Mapping[str, Sequence[ProcessSeries]], cases: Sequence[tuple[str, str]]
) -> list[Pair]:
    """Return ``PAIRS`` pairs of times from different fresh processes, spread evenly over (candidate, baseline) cases."""
    source = np.random.default_rng(0)
    pairs = []
    for number in range(PAIRS):
        candidate, baseline = cases[number % len(cases)]
        chosen = source.permutation(len(series[candidate]))[: 2 * PER_SIDE]
        ours = [series[candidate][process].samples_us for process in chosen[:PER_SIDE]]
        theirs = [series[baseline][process].samples_us for process in chosen[PER_SIDE:]]
        pairs.append(Pair(candidate, ours, theirs))
    return pairs
