"""Speed-ups of one implementation over another on a workload, with their intervals and verdicts.

A verdict needs three processes on both sides: an interval of fewer lacks the variation between processes, which is
often larger than that within them. "Faster" and "slower" need an interval that excludes 1 and medians that differ by
at least 0.5 %, "same" the whole interval within 2 % of 1; if they differ by much, sealed calls must agree. Everything else is ambiguous, and so is device time compared
with host time, or a cold with a hot cache. Two that were measured at different times get a verdict only if sentinels
and peaks agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import log
from statistics import median

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.record import NOT_COMPARED, CacheState, Record, Status, Timer
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, SMALLEST_EFFECT, Ratio, Verdict
from kernels_bench_tools.results.processes import estimate, resolution, samples
from kernels_bench_tools.stats import ratio_interval, ratio_of, verdict_of, widened

SAME_SPEED, SAME_MATMUL = SMALLEST_EFFECT, 0.015
"""Largest difference between the readings of two sides on a GPU: medians over their processes of the sentinel before
the workloads, and of the peaks. On H200s, readings of memory within a session differ by at most 0.31 %, on another card
by up to 1.7 %; matmuls within a session by at most 1.15 %, as their clocks vary with power, else by up to 3.1 %."""
SAME_SPEED_CPU = 0.25
"""The same on a CPU, whose peaks vary this much within a session."""
REPRODUCIBLE = 0.025
"""Of 100 speed-ups that were measured again on another H200, 97 differed by at most this: docs/measuring.md."""
SEALED_BOUND, SEALED_BOUND_CPU = 0.05, 0.25
"""Two that differ by more are faster or slower only if their sealed calls, which the judge's clock times, say so, too. On a CPU
it is what those of short calls vary by."""
SESSION_SECONDS = 3600
"""Where there are no readings, and on a CPU, two sides were measured together if at most this lies between them."""

_DEVICE_TIMERS = {Timer.CUPTI: Timer.CUPTI, Timer.EVENTS: Timer.CUPTI}
"""Both time the device, so they may be compared."""
_COLD = frozenset({CacheState.READ_FLUSH, CacheState.ROTATED})


def speedup_over(candidate: Sequence[Record], baseline: Sequence[Record]) -> Ratio:
    """Return the speed-up of a candidate over the baseline on the same workload and device, exactly 1 if it is the baseline."""
    records = [*candidate, *baseline]
    usable = all(record.outcome is Status.OK and NOT_COMPARED.isdisjoint(record.flags) for record in records)
    if not candidate or not baseline or not usable:
        return Ratio()
    ours, theirs = estimate(candidate), estimate(baseline)
    if ours is None or theirs is None:
        return Ratio()
    if candidate is baseline or list(candidate) == list(baseline):
        return Ratio(value=1.0, low=1.0, high=1.0, verdict=Verdict.BASELINE)
    latencies = (record.lat_ms for record in records if record.lat_ms is not None)
    # What was measured: the kind of timer, and whether caches were cold.
    if len({(_DEVICE_TIMERS.get(it.timer, it.timer), it.cache in _COLD) for it in latencies}) > 1:
        return Ratio(value=theirs.value / ours.value, verdict=Verdict.AMBIGUOUS)
    on_cpu = _on_cpu(records)
    if not same_conditions(candidate, baseline):
        ratio = ratio_of(theirs, ours)
        if on_cpu or not ratio.known:
            return Ratio(value=ratio.value, verdict=Verdict.SEPARATE)
        return Ratio.of(across_runs(ratio), Verdict.SEPARATE)
    ratio, numbers = ratio_of(theirs, ours), [record.process for record in candidate]
    if len(candidate) > 1 and numbers == [record.process for record in baseline]:
        sides = (baseline, candidate)
        ratio = ratio_interval(*([samples(it.lat_ms) for it in side if it.lat_ms] for side in sides))
    half_tick = resolution(record.lat_ms for record in records if record.lat_ms is not None)
    # Rounding errors are bounded and the same in every process, so the two add up.
    ratio = widened(ratio, half_tick / ours.value + half_tick / theirs.value)
    few = min(len(candidate), len(baseline)) < FEWEST_PROCESSES
    verdict = Verdict.FEW_PROCESSES if few else verdict_of(ratio, on_cpu=on_cpu)
    if verdict in {Verdict.FASTER, Verdict.SLOWER} and _contradicted(
        ratio.value, candidate, baseline, on_cpu
    ):
        verdict = Verdict.AMBIGUOUS
    return Ratio.of(ratio, verdict)


def _contradicted(
    ratio: float, candidate: Sequence[Record], baseline: Sequence[Record], on_cpu: bool
) -> bool:
    """Return whether the sealed calls of two that differ by much say that the other one is faster."""
    times = [[it.quantities.sealed for it in side if it.quantities] for side in (candidate, baseline)]
    ours, theirs = ([one.p50 for one in side if one] for side in times)
    much = abs(log(ratio)) > log(1 + (SEALED_BOUND_CPU if on_cpu else SEALED_BOUND))
    return bool(much and ours and theirs and (median(theirs) > median(ours)) != (ratio > 1))


def across_runs(ratio: Estimate) -> Estimate:
    """Return a ratio of two runs on GPUs with an interval that contains what runs differ by."""
    return Estimate(ratio.value, ratio.low / (1 + REPRODUCIBLE), ratio.high * (1 + REPRODUCIBLE))


def same_conditions(candidate: Sequence[Record], baseline: Sequence[Record]) -> bool:
    """Return whether the device was equally fast for both, as far as their records show."""
    ours, theirs = readings(candidate), readings(baseline)
    known, on_cpu = bool(ours.keys() & theirs.keys()), _on_cpu(candidate)
    if not known or on_cpu:
        together = _seconds_between(candidate, baseline) <= SESSION_SECONDS
        if together or not known:
            return together
    return not apart(ours, theirs, on_cpu=on_cpu)


def _on_cpu(records: Sequence[Record]) -> bool:
    return any(record.device is not None and record.device.kind == "cpu" for record in records)


def readings(records: Sequence[Record]) -> dict[str, float]:
    """Return sentinels and peaks, each its median over the processes; the null kernel varies by the timer's tick."""
    of_all: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for kernel, times in record.sentinels.items():
            # That after the workloads depends on what they were.
            if kernel != "null" and times and times[0] > 0:
                of_all[f"sentinel {kernel}"].append(times[0])
        for peak, rate in record.ceilings.items():
            if rate > 0:
                of_all[f"peak {peak}"].append(rate)
    return {reading: median(values) for reading, values in of_all.items()}


def apart(ours: Mapping[str, float], theirs: Mapping[str, float], *, on_cpu: bool) -> dict[str, float]:
    """Return the readings of two sides that differ too much for the same device, each as theirs over ours, minus 1."""
    differences = {}
    for reading in [reading for reading in ours if reading in theirs]:
        limit = SAME_SPEED_CPU if on_cpu else SAME_MATMUL if "matmul" in reading else SAME_SPEED
        if abs(log(ours[reading]) - log(theirs[reading])) > limit:
            differences[reading] = theirs[reading] / ours[reading] - 1
    return differences


def written_at(record: Record) -> float:
    """Return when a record was written, in seconds; ``ValueError`` if its time is not one, as of another harness."""
    return datetime.fromisoformat(record.ts).timestamp()


def _seconds_between(candidate: Sequence[Record], baseline: Sequence[Record]) -> float:
    """Return the time between two sides; 0 if they overlap, or one of their times is not known."""
    try:
        ours, theirs = (list(map(written_at, records)) for records in (candidate, baseline))
    except ValueError:
        return 0.0
    return max(min(ours) - max(theirs), min(theirs) - max(ours), 0.0)
