"""Any two implementations of a view, compared workload by workload."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import inf

import msgspec

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    Estimate,
    Pair,
    Point,
    Ratio,
    Row,
    Verdict,
    geometric_mean_interval,
)
from kernels_bench_tools.results.compare import compare
from kernels_bench_tools.results.rows import ViewRecords
from kernels_bench_tools.stats import CPU_STRETCH, ratio_of, verdict_of

_OPPOSITE = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}


def pairs_of(device: Device, found: Sequence[ViewRecords], rows: Sequence[Row]) -> list[Pair]:
    """Return each two rows with a time, in the order of the rows."""
    records = {one.implementation: one for one in found}
    measured = [row for row in rows if any(point.p50_ms is not None for point in row.points)]
    return [
        _pair(device, row, over, records[row.implementation], records[over.implementation])
        for row, over in combinations(measured, 2)
    ]


def reversed_pair(pair: Pair) -> Pair:
    """Return the same comparison seen from the other implementation."""
    ratios, overall = [_inverse(ratio) for ratio in pair.ratios], _inverse(pair.overall)
    return Pair(implementation=pair.over, over=pair.implementation, ratios=ratios, overall=overall)


def _inverse(ratio: Ratio) -> Ratio:
    value, low, high = (None if one is None else 1 / one for one in (ratio.value, ratio.high, ratio.low))
    verdict = _OPPOSITE.get(ratio.verdict, ratio.verdict)
    return msgspec.structs.replace(ratio, value=value, low=low, high=high, verdict=verdict)


def _pair(device: Device, row: Row, over: Row, ours: ViewRecords, theirs: ViewRecords) -> Pair:
    ratios = [_ratio(one, other, ours, theirs) for one, other in zip(row.points, over.points, strict=True)]
    known = [ratio for ratio in ratios if ratio.value is not None]
    overall = Ratio()
    if known:
        mean = geometric_mean_interval([_estimate(one.value, one.low, one.high) for one in known])
        separate = any(one.separate for one in known)
        if any(one.verdict is Verdict.FEW_PROCESSES for one in known):
            verdict = Verdict.FEW_PROCESSES
        elif not mean.known and any(one.verdict is Verdict.SEPARATE for one in known):
            verdict = Verdict.SEPARATE
        else:
            verdict = verdict_of(mean, CPU_STRETCH if device.kind == "cpu" else 1.0)
        overall = _made(mean, verdict, separate)
    return Pair(implementation=row.implementation, over=over.implementation, ratios=ratios, overall=overall)


def _ratio(point: Point, over: Point, ours: ViewRecords, theirs: ViewRecords) -> Ratio:
    sides = (one.processes.get(point.workload, []) for one in (ours, theirs))
    direct = compare(*sides)
    if direct.verdict is not Verdict.SEPARATE or direct.value is None:
        return Ratio(value=direct.value, low=direct.low, high=direct.high, verdict=direct.verdict)
    # Measured at different times: the baseline is what both were compared with.
    over_baseline = [_estimate(one.speedup, one.speedup_low, one.speedup_high) for one in (point, over)]
    if not all(one.known for one in over_baseline):
        return Ratio(value=direct.value, verdict=Verdict.SEPARATE, separate=True)
    ratio = ratio_of(*over_baseline)
    few = min(point.processes, over.processes) < FEWEST_PROCESSES
    return _made(ratio, Verdict.FEW_PROCESSES if few else verdict_of(ratio), separate=True)


def _estimate(value: float | None, low: float | None, high: float | None) -> Estimate:
    return Estimate(value or 0.0, low or 0.0, high or inf)


def _made(ratio: Estimate, verdict: Verdict, separate: bool) -> Ratio:
    low, high = (ratio.low, ratio.high) if ratio.known else (None, None)
    return Ratio(value=ratio.value, low=low, high=high, verdict=verdict, separate=separate)
