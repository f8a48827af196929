"""Who is faster, by how much, and how sure that is.

A verdict follows from the interval of the speed-up. "Faster" and "slower" need it to exclude 1 (the difference
is real) and the medians to differ by at least 0.5 % (it matters). "Same" is as strong a claim: the whole
interval must lie within 2 % of 1. What is neither is ambiguous. The device's time and the host's, or one with
a cold and one with a hot cache, are different quantities: always ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kernels_bench_tools.schema.record import CacheState, Flag, Record, Regime, Status, Timer
from kernels_bench_tools.schema.summary import SMALLEST_EFFECT, Estimate, Verdict
from kernels_bench_tools.stats import ratio_interval, ratio_of, widened
from kernels_bench_tools.summarize.merge import by_workload, estimate, merge, resolution, samples
from kernels_bench_tools.summarize.words import reason_of

SAME_EFFECT = 0.02
"""Two are the same if they are known to differ by no more."""
EFFECT_WITHOUT_INTERVAL = 0.10
"""Medians without an interval (five repetitions, say) must differ by this much for a verdict."""

_DEVICE_TIMERS = {Timer.CUPTI: Timer.CUPTI, Timer.EVENTS: Timer.CUPTI}
"""Both time the device; which of them is the truer for a kernel, its record has decided."""
_COLD = frozenset({CacheState.READ_FLUSH, CacheState.ROTATED})


class Speedup(msgspec.Struct, kw_only=True, frozen=True):
    """A candidate beside its baseline on one workload: the baseline's time divided by the candidate's."""

    value: float | None = None
    """None unless all processes of both ran and were correct."""
    low: float | None = None
    """Lower end of its interval; None where it is not known."""
    high: float | None = None
    verdict: Verdict = Verdict.NONE


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    """One workload of a candidate beside its baseline's."""

    workload: str
    status: Status
    reason: str = ""
    median_ms: float | None = None
    ci_low_ms: float | None = None
    ci_high_ms: float | None = None
    processes: int = 1
    """Fresh processes that measured it."""
    baseline_ms: float | None = None
    """Median of the baseline; None if it has no rank on this workload."""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict = Verdict.NONE
    regime: Regime | None = None
    fraction: float | None = None
    """Achieved rate over that of ``ceiling``."""
    ceiling: str = ""
    flags: list[Flag] = []


def compare(candidate: Sequence[Record], baseline: Sequence[Record]) -> Speedup:
    """Return how a candidate does beside the baseline on the same workload and device.

    Args:
        candidate: Its records, one for each process.
        baseline: The baseline's; the candidate's own if it is the baseline, which gives exactly 1.
    """
    records = [*candidate, *baseline]
    if not candidate or not baseline or any(record.outcome is not Status.OK for record in records):
        return Speedup()
    ours, theirs = estimate(candidate), estimate(baseline)
    if ours is None or theirs is None:
        return Speedup()
    if candidate is baseline or list(candidate) == list(baseline):
        return Speedup(value=1.0, low=1.0, high=1.0, verdict=Verdict.BASELINE)
    if len(_quantities(records)) > 1:
        return Speedup(value=theirs.value / ours.value, verdict=Verdict.AMBIGUOUS)
    paired = len(candidate) > 1 and _numbers(candidate) == _numbers(baseline)
    ratio = ratio_interval(_groups(baseline), _groups(candidate)) if paired else ratio_of(theirs, ours)
    half_tick = resolution(record.lat_ms for record in records if record.lat_ms is not None)
    # Rounding is bounded, so the two errors add up; and it is in every process the same.
    ratio = widened(ratio, half_tick / ours.value + half_tick / theirs.value)
    ends = (ratio.low, ratio.high) if ratio.known else (None, None)
    return Speedup(value=ratio.value, low=ends[0], high=ends[1], verdict=verdict_of(ratio))


def verdict_of(ratio: Estimate) -> Verdict:
    """Return the verdict for a speed-up with its interval."""
    direction = Verdict.FASTER if ratio.value > 1 else Verdict.SLOWER
    difference = max(ratio.value, 1 / ratio.value) - 1
    if not ratio.known:
        return direction if difference > EFFECT_WITHOUT_INTERVAL else Verdict.AMBIGUOUS
    if difference >= SMALLEST_EFFECT and not ratio.low <= 1 <= ratio.high:
        return direction
    within = ratio.low >= 1 / (1 + SAME_EFFECT) and ratio.high <= 1 + SAME_EFFECT
    return Verdict.SAME if within else Verdict.AMBIGUOUS


def _numbers(records: Sequence[Record]) -> list[int]:
    return [record.process for record in records]


def _groups(records: Sequence[Record]) -> list[Sequence[float]]:
    return [samples(record.lat_ms) for record in records if record.lat_ms is not None]


def _quantities(records: Iterable[Record]) -> set[tuple[Timer, bool]]:
    """Return what was measured: by which kind of timer, and whether cold."""
    latencies = (record.lat_ms for record in records if record.lat_ms is not None)
    return {(_DEVICE_TIMERS.get(it.timer, it.timer), it.cache in _COLD) for it in latencies}


def compare_records(records: Iterable[Record], baseline: Iterable[Record]) -> list[Comparison]:
    """Return a row for each workload that either side names, in the order of the candidate's records.

    A record without a workload speaks for every workload that its side has no record of. A workload
    that only the baseline has is left out, unless such a record speaks for it.

    Args:
        records: The candidate's records on one device, of all its processes.
        baseline: The baseline's on the same device; the candidate's own if it is the baseline.
    """
    ours, whole = by_workload(records)
    theirs, _ = by_workload(baseline)
    names = list(ours) + [name for name in theirs if whole is not None and name not in ours]
    if whole is not None:
        if not names:
            return [_comparison("", [whole], [])]
        ours = {name: ours.get(name, [whole]) for name in names}
    return [_comparison(name, ours[name], theirs.get(name, [])) for name in names]


def _comparison(workload: str, records: Sequence[Record], baseline: Sequence[Record]) -> Comparison:
    record, found = merge(records), estimate(records)
    rankable = bool(baseline) and all(other.outcome is Status.OK for other in baseline)
    theirs = estimate(baseline) if rankable else None
    speedup = compare(records, baseline)
    shown = record.roofline if record.outcome is Status.OK else None
    return Comparison(
        workload=workload,
        status=record.outcome,
        reason=reason_of(record),
        median_ms=record.lat_ms.p50 if record.lat_ms else None,
        ci_low_ms=found.low if found and found.known else None,
        ci_high_ms=found.high if found and found.known else None,
        processes=len(records),
        baseline_ms=theirs.value if theirs else None,
        speedup=speedup.value,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        verdict=speedup.verdict,
        regime=record.regime,
        fraction=shown.fraction if shown else None,
        ceiling=shown.ceiling if shown else "",
        flags=record.flags,
    )
