"""Processes that measured the same workload merged into one record; speed-ups, their intervals and verdicts.

A verdict needs three processes on both sides: an interval of fewer lacks the variation between processes, which is
often larger than that within them. "Faster" and "slower" need an interval that excludes 1 and medians that differ by
at least 0.5 %, "same" the whole interval within 2 % of 1. Everything else is ambiguous, and so is device time compared
with host time, or a cold with a hot cache. Two that were measured at different times get a verdict only if sentinels
and peaks agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import inf, log, sqrt
from statistics import median
from typing import TypeVar

import msgspec

from kernels_bench_tools.records.outcome import WORST_LAST, one_line, reason_of
from kernels_bench_tools.records.record import (
    CacheState,
    Failure,
    Flag,
    Judged,
    Latency,
    Quantities,
    Record,
    Status,
    Timer,
    Timing,
)
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, SMALLEST_EFFECT, Estimate, Ratio, Verdict
from kernels_bench_tools.stats import (
    CONFIDENCE,
    CPU_STRETCH,
    HALF_TICK_MS,
    hierarchical_median,
    median_interval,
    ratio_interval,
    ratio_of,
    verdict_of,
    widened,
)

_TICKING = frozenset({Timer.CUPTI, Timer.EVENTS})
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", int, float)


def by_workload(records: Iterable[Record]) -> tuple[dict[str, list[Record]], Record | None]:
    """Return each workload's latest record of each process, and the latest record without a workload.

    A failure without a workload is also a record of each workload that its process did not measure and others did. Of a
    workload with records of several runs, those returned have the number of the others.
    """
    latest: dict[tuple[str, int], Record] = {}
    all_of: dict[str, list[Record]] = {}
    whole: Record | None = None
    failures: dict[int, Record] = {}
    for record in records:
        if not record.workload:
            whole = record if whole is None or record.ts >= whole.ts else whole
            failures[record.process] = record
            continue
        all_of.setdefault(record.workload, []).append(record)
        known = latest.get((record.workload, record.process))
        if known is None or record.ts >= known.ts:
            latest[record.workload, record.process] = record
    for name, measured in all_of.items():
        for process, failure in failures.items():
            if (name, process) not in latest and failure.ts >= measured[0].ts:
                latest[name, process] = msgspec.structs.replace(failure, wl=measured[0].wl)
    found: dict[str, list[Record]] = {name: [] for name in all_of}
    for (name, _), record in sorted(latest.items(), key=lambda item: item[0][1]):
        earlier = run_count(all_of[name]) - 1
        found[name].append(
            record
            if earlier == record.earlier_runs
            else msgspec.structs.replace(record, earlier_runs=earlier)
        )
    return found, whole


def run_count(records: Iterable[Record]) -> int:
    """Return how many runs measured a workload, given its records: as many as the process with the most has."""
    runs: dict[int, dict[str, int]] = {}
    for record in records:
        of_process = runs.setdefault(record.process, {})
        of_process[record.run] = max(1 + record.earlier_runs, of_process.get(record.run, 0))
    return max((sum(of_process.values()) for of_process in runs.values()), default=0)


def interval(latency: Latency) -> tuple[float, float] | None:
    """Return the interval of the median in ms: the recorded one, else one of the samples, else None."""
    if latency.ci_low is not None and latency.ci_high is not None:
        return latency.ci_low, latency.ci_high
    return median_interval(latency.raw_times)


def estimate(records: Sequence[Record]) -> Estimate | None:
    """Return the median in ms of all processes and its interval; None unless every process ran."""
    latencies = [record.lat_ms for record in records if record.lat_ms and record.lat_ms.p50 > 0]
    if not records or len(latencies) < len(records):
        return None
    if len(latencies) > 1:
        found = hierarchical_median([samples(latency) for latency in latencies])
    else:
        found = Estimate(latencies[0].p50, *(interval(latencies[0]) or (0.0, inf)))
    return widened(found, resolution(latencies) / found.value)


def resolution(latencies: Iterable[Latency]) -> float:
    """Return half a tick of the device's clock in ms: all samples of a short kernel may show the same tick."""
    return HALF_TICK_MS if any(latency.timer in _TICKING for latency in latencies) else 0.0


def samples(latency: Latency) -> Sequence[float]:
    """Return samples with the recorded median; if some were left out, the others' spread gives the same interval."""
    times = latency.raw_times
    if not times or min(times) <= 0:
        return [latency.p50]
    middle, power = median(times), min(1.0, sqrt(len(times) / latency.reps))
    scaled = [(time / middle) ** power for time in times]
    centre = latency.p50 / median(scaled)
    return [each * centre for each in scaled]


def merge(records: Sequence[Record]) -> Record:
    """Return one record for all processes: medians of figures, the worst outcome, other fields of the first that ran.

    Correct results of a busy machine are ``disturbed``: the times are not those of the implementation.
    """
    merged = records[0] if len(records) == 1 else _merged(records)
    busy = next((record for record in records if is_disturbed(record)), None)
    if busy is None or merged.outcome is not Status.OK:
        return merged
    why = busy.tags.get("timer_note", "other programs used it")
    failure = Failure(type="Disturbed", msg=f"{why}. Measure again when the machine is idle, with --rerun")
    return msgspec.structs.replace(merged, status=Status.DISTURBED, ok=False, err=failure)


def is_disturbed(record: Record) -> bool:
    """Return whether other processes kept its threads from running, so that its time is not compared."""
    return Flag.DISTURBED in record.flags


def _merged(records: Sequence[Record]) -> Record:
    worst = max(records, key=lambda record: WORST_LAST.index(record.outcome))
    ran = [record for record in records if record.outcome.ran]
    rooflines = [record.roofline for record in ran if record.roofline is not None]
    commonest = _commonest([roofline.ceiling for roofline in rooflines])
    # The middle one of those bounded by the most frequent peak.
    alike = sorted((it for it in rooflines if it.ceiling == commonest), key=lambda it: it.fraction)
    return msgspec.structs.replace(
        (ran or records)[0],
        status=worst.outcome,
        ok=worst.ok,
        err=_failure(worst, records),
        lat_ms=_latency(ran) if worst.outcome.ran else None,
        compile_ms=_middle(record.compile_ms for record in records),
        peak_bytes=_largest(record.peak_bytes for record in records),
        absmax=_largest(record.absmax for record in records),
        corr=worst.corr,
        flags=[flag for flag in Flag if any(flag in record.flags for record in records)],
        quantities=_quantities(records),
        regime=_commonest([record.regime for record in ran if record.regime is not None]),
        roofline=alike[len(alike) // 2] if alike else None,
        span_ms=_middle(record.span_ms for record in records),
        judged=least_trusted(records),
        trust=next((record.trust for record in records if record.trust), ""),
    )


def least_trusted(records: Iterable[Record]) -> Judged:
    return max((record.judged for record in records), key=list(Judged).index, default=Judged.IN_PROCESS)


def _failure(worst: Record, records: Sequence[Record]) -> Failure | None:
    """Return why the worst one failed, and in which processes where not in all."""
    if worst.outcome is Status.OK:
        return None
    alike = [record.process + 1 for record in records if record.outcome is worst.outcome]
    kind = worst.err.type if worst.err else worst.outcome.value
    # Only the first process runs the edge cases.
    if len(alike) == len(records) or (worst.outcome.ran and alike == [1]):
        return worst.err or Failure(type=kind, msg=reason_of(worst))
    which = "process " + " and ".join(map(str, alike))
    return Failure(type=kind, msg=f"{reason_of(worst)} ({which} of {len(records)})")


def _latency(ran: Sequence[Record]) -> Latency:
    latencies = [record.lat_ms for record in ran if record.lat_ms is not None]
    found = estimate(ran)
    low, high = found.ends if found else (None, None)
    middles = {
        name: _middle(getattr(latency, name) for latency in latencies)
        for name in ("p10", "p90", "mean", "iqr")
    }
    return msgspec.structs.replace(
        latencies[0],
        **middles,
        p50=found.value if found else median(latency.p50 for latency in latencies),
        raw_times=[time for latency in latencies for time in latency.raw_times],
        reps=sum(latency.reps for latency in latencies),
        has_warnings=any(latency.has_warnings for latency in latencies),
        ci_low=low,
        ci_high=high,
        confidence=CONFIDENCE if low else None,
        tail_ratio=_largest(latency.tail_ratio for latency in latencies),
        drift=max(
            (latency.drift for latency in latencies if latency.drift is not None), key=abs, default=None
        ),
    )


def _quantities(records: Sequence[Record]) -> Quantities | None:
    """Return the median of the processes' medians with Student's interval; for one process what it recorded."""
    known = [record.quantities for record in records if record.quantities is not None]
    merged = {}
    for name in Quantities.__struct_fields__:
        timings = [found for quantities in known if (found := getattr(quantities, name)) is not None]
        if len(timings) > 1:
            medians = [timing.p50 for timing in timings]
            # A clock that did not advance leaves no interval.
            found = hierarchical_median([[each] for each in medians]) if min(medians) > 0 else None
            ends = (found.low, found.high) if found else (None, None)
            reps = sum(timing.reps for timing in timings)
            merged[name] = Timing(p50=median(medians), ci_low=ends[0], ci_high=ends[1], reps=reps)
            merged[name].joules = _middle(timing.joules for timing in timings)
        elif timings:
            merged[name] = timings[0]
    return Quantities(**merged) if known else None


def _commonest(values: Sequence[_Value]) -> _Value | None:
    return Counter(values).most_common(1)[0][0] if values else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def _largest(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)


def limitation_of(records: Iterable[Record]) -> str:
    """Return in one line which edge cases an implementation refused in any process; empty for none."""
    found = [record.corr for record in records if isinstance(record.corr.get("refused"), list)]
    names = dict.fromkeys(str(name) for corr in found for name in corr["refused"])
    if not names:
        return ""
    why = next((str(corr["refusal"]) for corr in found if corr.get("refusal")), "")
    # Earlier records have this package's own exception there.
    why = why.removeprefix("CallError: ").removesuffix(": ")
    return one_line(f"refuses {', '.join(names)}" + (f" ({why})" if why else ""))


SAME_SPEED, SAME_MATMUL = SMALLEST_EFFECT, 0.015
"""Largest difference between the readings of two sides on a GPU: medians over their processes of the sentinel before
the workloads, and of the peaks. On H200s, readings of memory within a session differ by at most 0.31 %, on another card
by up to 1.7 %; matmuls within a session by at most 1.15 %, as their clocks vary with power, else by up to 3.1 %."""
SAME_SPEED_CPU = 0.25
"""The same on a CPU, whose peaks vary this much within a session."""
REPRODUCIBLE = 0.025
"""Of 100 speed-ups that were measured again on another H200, 97 differed by at most this: docs/measuring.md."""
SESSION_SECONDS = 3600
"""Where there are no readings, and on a CPU, two sides were measured together if at most this lies between them."""

_DEVICE_TIMERS = {Timer.CUPTI: Timer.CUPTI, Timer.EVENTS: Timer.CUPTI}
"""Both time the device, so they may be compared."""
_COLD = frozenset({CacheState.READ_FLUSH, CacheState.ROTATED})


def compare(candidate: Sequence[Record], baseline: Sequence[Record]) -> Ratio:
    """Return the speed-up of a candidate over the baseline on the same workload and device, exactly 1 if it is the baseline."""
    records = [*candidate, *baseline]
    usable = all(record.outcome is Status.OK and not is_disturbed(record) for record in records)
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
        # On GPUs the interval contains what runs differ by.
        low, high = ratio.low / (1 + REPRODUCIBLE), ratio.high * (1 + REPRODUCIBLE)
        return Ratio.of(Estimate(ratio.value, low, high), Verdict.SEPARATE)
    if len(candidate) > 1 and [record.process for record in candidate] == [
        record.process for record in baseline
    ]:
        groups = (
            [samples(record.lat_ms) for record in side if record.lat_ms] for side in (baseline, candidate)
        )
        ratio = ratio_interval(*groups)
    else:
        ratio = ratio_of(theirs, ours)
    half_tick = resolution(record.lat_ms for record in records if record.lat_ms is not None)
    # Rounding errors are bounded and the same in every process, so the two add up.
    ratio = widened(ratio, half_tick / ours.value + half_tick / theirs.value)
    few = min(len(candidate), len(baseline)) < FEWEST_PROCESSES
    verdict = Verdict.FEW_PROCESSES if few else verdict_of(ratio, CPU_STRETCH if on_cpu else 1.0)
    return Ratio.of(ratio, verdict)


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
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, times in record.sentinels.items():
            # That after the workloads depends on what they were.
            if name != "null" and times and times[0] > 0:
                found[f"sentinel {name}"].append(times[0])
        for name, value in record.ceilings.items():
            if value > 0:
                found[f"peak {name}"].append(value)
    return {name: median(values) for name, values in found.items()}


def apart(ours: Mapping[str, float], theirs: Mapping[str, float], *, on_cpu: bool) -> dict[str, float]:
    """Return the readings of two sides that differ too much for the same device, each as theirs over ours, minus 1."""
    found = {}
    for name in [name for name in ours if name in theirs]:
        limit = SAME_SPEED_CPU if on_cpu else SAME_MATMUL if "matmul" in name else SAME_SPEED
        if abs(log(ours[name]) - log(theirs[name])) > limit:
            found[name] = theirs[name] / ours[name] - 1
    return found


def _seconds_between(candidate: Sequence[Record], baseline: Sequence[Record]) -> float:
    """Return the time between two sides; 0 if they overlap, or one of their times is not known."""
    try:
        ours, theirs = (
            [datetime.fromisoformat(record.ts).timestamp() for record in records]
            for records in (candidate, baseline)
        )
    except ValueError:
        return 0.0
    return max(min(ours) - max(theirs), min(theirs) - max(ours), 0.0)
