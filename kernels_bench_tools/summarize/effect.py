"""Effects of implementations on models: from the records of several processes to a speed-up and a verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import log

import msgspec

from kernels_bench_tools.schema.record import Effect, Latency, Record
from kernels_bench_tools.schema.summary import FEWEST_PROCESSES
from kernels_bench_tools.summarize.compare import Speedup, compare

PREDICTION_SHARE = 0.1
"""A prediction is confirmed if the measured gain differs from it by at most this share, or by the noise."""


class EffectVerdict(StrEnum):
    """How a measured speed-up relates to noise and to the prediction."""

    CONFIRMED = "confirmed"
    """As predicted."""
    SHORT = "short"
    """Less than predicted."""
    OVER = "over"
    """More than predicted."""
    FASTER = "faster"
    """Of a single kernel, for which nothing is predicted."""
    BELOW_NOISE = "below noise"
    """Not distinguishable from no change."""
    REGRESSED = "regressed"
    """Slower."""
    NONE = "no verdict"
    """Measured in too few processes."""


class EffectRow(msgspec.Struct, kw_only=True):
    """A level of a model with and without an implementation, over all processes."""

    effect: Effect
    """Of the first process, for its names and counts."""
    processes: int
    baseline_ms: float
    candidate_ms: float
    predicted: float | None
    """Speed-up; None for a single kernel."""
    speedup: float
    low: float | None
    high: float | None
    noise: float
    """Largest difference between two samples of the baseline in one process, as a share of its time."""
    verdict: EffectVerdict
    agreement: dict[str, float]
    """How the logits agree, for one row of a whole model."""


def effect_rows(records: Iterable[Record]) -> list[EffectRow]:
    """Return a row for each level, module and phase of one implementation's records, in their order."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.effect is not None:
            found[record.workload].append(record)
    return [_row(processes) for processes in found.values()]


def _row(records: Sequence[Record]) -> EffectRow:
    effects = [record.effect for record in records if record.effect is not None]
    baseline = [
        msgspec.structs.replace(record, lat_ms=effect.baseline, impl="")
        for record, effect in zip(records, effects, strict=True)
    ]
    speedup = compare(records, baseline)
    base = _middle([effect.baseline for effect in effects])
    again = [(effect.baseline.p50, effect.again.p50) for effect in effects if effect.again is not None]
    noise = max((abs(one / other - 1) for one, other in again if other > 0), default=0.0)
    shares = [one.predicted_ms / one.baseline.p50 for one in effects if one.predicted_ms and one.baseline.p50]
    predicted = 1 / (sum(shares) / len(shares)) if shares else None
    return EffectRow(
        effect=effects[0],
        processes=len(records),
        baseline_ms=base,
        candidate_ms=_middle([record.lat_ms for record in records if record.lat_ms is not None]),
        predicted=predicted,
        speedup=speedup.value or 1.0,
        low=speedup.low,
        high=speedup.high,
        noise=noise,
        verdict=verdict_of_effect(speedup, predicted, noise, len(records)),
        agreement=records[0].corr,
    )


def _middle(latencies: Sequence[Latency]) -> float:
    values = sorted(latency.p50 for latency in latencies)
    return values[len(values) // 2]


def verdict_of_effect(
    speedup: Speedup, predicted: float | None, noise: float, processes: int
) -> EffectVerdict:
    """Return the verdict on a measured speed-up, given the predicted one and the noise as a share of the time."""
    value, low, high = speedup.value, speedup.low, speedup.high
    if value is None or low is None or high is None or processes < FEWEST_PROCESSES:
        return EffectVerdict.NONE
    if abs(log(value)) <= log(1 + noise) or low <= 1 <= high:
        return EffectVerdict.BELOW_NOISE
    if value < 1:
        return EffectVerdict.REGRESSED
    if predicted is None:
        return EffectVerdict.FASTER
    margin = max(PREDICTION_SHARE * abs(log(predicted)), log(1 + noise))
    if log(low) - margin <= log(predicted) <= log(high) + margin:
        return EffectVerdict.CONFIRMED
    return EffectVerdict.SHORT if predicted > value else EffectVerdict.OVER
