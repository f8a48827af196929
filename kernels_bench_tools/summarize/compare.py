"""Who is faster, and who may be ranked: the only place that decides either.

A verdict passes two gates: the intervals of both medians must be disjoint (the difference is real), and
the medians must differ by at least 0.5 % (the difference matters). "Same" is as strong a claim as
"faster", so it needs tight intervals or nearly equal medians; what is neither is ambiguous. Times taken
by different timers, or one with a cold and one with a hot cache, are different quantities: always ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kernels_bench_tools.records import CacheState, Latency, Record, Status
from kernels_bench_tools.statistics import geometric_mean, median_interval
from kernels_bench_tools.summaries import Point, Row, Verdict

SMALLEST_EFFECT = 0.005
"""Medians closer than this are the same, however narrow their intervals."""
SAME_EFFECT = 0.02
"""Medians closer than this are the same if both are known well."""
SAME_HALF_WIDTH = 0.01
"""A median is known well if its interval reaches no further than this to either side."""
EFFECT_WITHOUT_INTERVAL = 0.10
"""Medians without an interval (five repetitions, say) must differ by this much for a verdict."""

_COLD = frozenset({CacheState.READ_FLUSH, CacheState.ROTATED})


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    """One workload of a candidate beside its baseline's."""

    workload: str
    status: Status
    reason: str = ""
    median_ms: float | None = None
    ci_low_ms: float | None = None
    ci_high_ms: float | None = None
    baseline_ms: float | None = None
    """Median of the baseline; None if it has no rank on this workload."""
    speedup: float | None = None
    verdict: Verdict = Verdict.NONE


def interval(latency: Latency) -> tuple[float, float] | None:
    """Return the interval of the median in ms: the recorded one, else one of the samples, else None."""
    if latency.ci_low is not None and latency.ci_high is not None:
        return latency.ci_low, latency.ci_high
    return median_interval(latency.raw_times)


def compare(candidate: Record, baseline: Record) -> tuple[float | None, Verdict]:
    """Return how a candidate does beside the baseline on the same workload and device.

    Returns:
        The speed-up, baseline median divided by candidate median, and the verdict; ``None`` and
        ``Verdict.NONE`` unless both ran and were correct. A record beside itself is the baseline, 1.0.
    """
    if candidate.outcome is not Status.OK or baseline.outcome is not Status.OK:
        return None, Verdict.NONE
    ours, theirs = candidate.lat_ms, baseline.lat_ms
    if ours is None or theirs is None or ours.p50 <= 0 or theirs.p50 <= 0:
        return None, Verdict.NONE
    if candidate is baseline or candidate == baseline:
        return 1.0, Verdict.BASELINE
    return theirs.p50 / ours.p50, _verdict(ours, theirs)


def _verdict(ours: Latency, theirs: Latency) -> Verdict:
    if ours.timer is not theirs.timer or (ours.cache in _COLD) is not (theirs.cache in _COLD):
        return Verdict.AMBIGUOUS
    direction = Verdict.FASTER if ours.p50 < theirs.p50 else Verdict.SLOWER
    difference = max(ours.p50, theirs.p50) / min(ours.p50, theirs.p50) - 1
    first, second = interval(ours), interval(theirs)
    if first is None or second is None:
        return direction if difference > EFFECT_WITHOUT_INTERVAL else Verdict.AMBIGUOUS
    if difference < SMALLEST_EFFECT:
        return Verdict.SAME
    if first[1] < second[0] or second[1] < first[0]:
        return direction
    known_well = max(_reach(ours.p50, first), _reach(theirs.p50, second)) <= SAME_HALF_WIDTH
    return Verdict.SAME if difference <= SAME_EFFECT and known_well else Verdict.AMBIGUOUS


def _reach(median: float, bounds: tuple[float, float]) -> float:
    """Return how far the interval reaches from the median, as a share of it."""
    return max(bounds[1] - median, median - bounds[0]) / median


def compare_records(records: Iterable[Record], baseline: Iterable[Record]) -> list[Comparison]:
    """Return a row for each workload that either side names, in the order of the candidate's records.

    A record without a workload speaks for every workload that its side has no record of. A workload
    that only the baseline has is left out, unless such a record speaks for it.

    Args:
        records: The candidate's records on one device.
        baseline: The baseline's on the same device; the candidate's own if it is the baseline.
    """
    ours, whole = by_workload(records)
    theirs, _ = by_workload(baseline)
    names = list(ours) + [name for name in theirs if whole is not None and name not in ours]
    if whole is not None and not names:
        return [_comparison("", whole, None)]
    rows = ((name, ours.get(name, whole), theirs.get(name)) for name in names)
    return [_comparison(name, record, other) for name, record, other in rows if record is not None]


def by_workload(records: Iterable[Record]) -> tuple[dict[str, Record], Record | None]:
    """Return the latest record of each workload, and the latest that speaks for all of them."""
    latest: dict[str, Record] = {}
    for record in records:
        known = latest.get(record.workload)
        if known is None or record.ts >= known.ts:
            latest[record.workload] = record
    whole = latest.pop("", None)
    return latest, whole


def _comparison(workload: str, record: Record, baseline: Record | None) -> Comparison:
    bounds = interval(record.lat_ms) if record.lat_ms else None
    rankable = baseline is not None and baseline.outcome is Status.OK
    speedup, verdict = compare(record, baseline) if baseline is not None else (None, Verdict.NONE)
    return Comparison(
        workload=workload,
        status=record.outcome,
        reason=reason_of(record),
        median_ms=record.lat_ms.p50 if record.lat_ms else None,
        ci_low_ms=bounds[0] if bounds else None,
        ci_high_ms=bounds[1] if bounds else None,
        baseline_ms=baseline.lat_ms.p50 if rankable and baseline and baseline.lat_ms else None,
        speedup=speedup,
        verdict=verdict,
    )


def reason_of(record: Record) -> str:
    """Return in one line why a record has no latency or no rank; empty for one that is ok."""
    if record.outcome is Status.OK:
        return ""
    if record.err is not None:
        kind, told = record.err.type, record.err.msg
        # An exception's class says what its message often does not; a status is shown anyway.
        named = record.outcome is Status.ERROR and kind != record.outcome.value and kind not in told
        return one_line(f"{kind}: {told}" if named else told or kind)
    if record.outcome is Status.INCORRECT:
        judged = record.corr.get("reason")
        if isinstance(judged, str) and judged:
            return one_line(judged)
        error = "" if record.absmax is None else f", by up to {record.absmax:.3g}"
        return f"differs from the reference{error}"
    return f"{record.outcome.value}, and its record does not say why"


def one_line(text: str, limit: int = 300) -> str:
    """Return ``text`` with every run of white space made one space, cut to ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def overall_speedup(points: Sequence[Point]) -> tuple[float | None, int]:
    """Return the geometric mean of the speed-ups, and over how many workloads it was taken."""
    ratios = [point.speedup for point in points if point.speedup is not None]
    return (geometric_mean(ratios), len(ratios)) if ratios else (None, 0)


def ranked(rows: Sequence[Row], baseline: str) -> list[Row]:
    """Return the rows in the order of a table, with ranks.

    A row is ranked if it passed every workload that the baseline passed, by its speed-up; without a
    baseline, if it passed every workload that any row passed, by its latency. Then come the rows that
    passed fewer, then those that passed none.

    Args:
        rows: The rows of one device, each with a point per workload.
        baseline: Id of the implementation that divides the speed-ups, or empty.
    """
    judges = [row for row in rows if row.implementation == baseline] if baseline else rows
    needed = {point.workload for row in judges for point in row.points if point.status is Status.OK}
    able = [row for row in rows if needed and needed <= _passed(row)]
    able.sort(key=lambda row: (-(row.speedup or 0), _latency_over(row, needed), row.implementation))
    others = [row for row in rows if not needed or not needed <= _passed(row)]
    others.sort(key=lambda row: (row.passed == 0, not _ran(row), -row.passed, row.implementation))
    return [msgspec.structs.replace(row, rank=rank) for rank, row in enumerate(able, start=1)] + others


def _passed(row: Row) -> set[str]:
    return {point.workload for point in row.points if point.status is Status.OK}


def _ran(row: Row) -> bool:
    return any(point.status.ran for point in row.points)


def _latency_over(row: Row, workloads: set[str]) -> float:
    times = [point.p50_ms for point in row.points if point.workload in workloads and point.p50_ms]
    return geometric_mean(times) if times else float("inf")
