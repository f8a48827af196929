"""Effects of implementations on models: from the records of several processes to a speed-up and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from statistics import median

import msgspec

from kernels_bench_tools.records.effect import MODEL_LEVEL, EffectRow, EffectVerdict
from kernels_bench_tools.records.record import Effect, Part, Record
from kernels_bench_tools.records.summary import FEWEST_PROCESSES
from kernels_bench_tools.results.compare import Speedup, compare
from kernels_bench_tools.results.merge import by_workload
from kernels_bench_tools.text import grouped, milliseconds

PREDICTION_SHARE = 0.1
"""A prediction is confirmed if the measured gain differs from it by at most this share, or by the noise."""


def effect_rows(records: Iterable[Record]) -> list[EffectRow]:
    """Return a row for each level, module and phase of one implementation's records, in their order."""
    timed = (record for record in records if record.effect is not None and record.lat_ms is not None)
    found, _ = by_workload(timed)
    rows = [_row(processes) for processes in found.values()]
    for row in rows:
        row.cause = _cause(row, [one for one in rows if one.effect.phase == row.effect.phase])
    return rows


def _row(records: Sequence[Record]) -> EffectRow:
    effects = [record.effect for record in records if record.effect is not None]
    baseline = [
        msgspec.structs.replace(record, lat_ms=effect.baseline, impl="")
        for record, effect in zip(records, effects, strict=True)
    ]
    speedup = compare(records, baseline)
    base = median(effect.baseline.p50 for effect in effects)
    again = [(effect.baseline.p50, effect.again.p50) for effect in effects if effect.again is not None]
    noise = max((abs(one / other - 1) for one, other in again if other > 0), default=0.0)
    shares = [one.predicted_ms / one.baseline.p50 for one in effects if one.predicted_ms and one.baseline.p50]
    predicted = 1 / (sum(shares) / len(shares)) if shares else None
    return EffectRow(
        effect=msgspec.structs.replace(effects[0], parts=_parts(effects)),
        processes=len(records),
        baseline_ms=base,
        candidate_ms=median(record.lat_ms.p50 for record in records if record.lat_ms is not None),
        predicted=predicted,
        speedup=speedup.value or 1.0,
        low=speedup.low,
        high=speedup.high,
        noise=noise,
        verdict=verdict_of_effect(speedup, predicted, noise, len(records)),
        agreement=records[0].corr,
        peak_bytes=records[0].peak_bytes,
    )


def _parts(effects: Sequence[Effect]) -> list[Part]:
    """Return the parts with the medians of all processes."""
    found = grouped(((part.module, part.calls), part) for effect in effects for part in effect.parts)
    return [
        msgspec.structs.replace(
            some[0],
            ms=median(part.ms for part in some),
            alone_ms=median(alone)
            if (alone := [one.alone_ms for one in some if one.alone_ms is not None])
            else None,
        )
        for some in found.values()
    ]


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


def _cause(row: EffectRow, phase: Sequence[EffectRow]) -> str:
    """Return why a verdict is not that of the prediction; ``phase`` has all rows of the forward pass."""
    # What was replaced, also a whole block; nothing of training or a changed model is measured alone.
    kernels = [one for one in phase if one.effect.level < MODEL_LEVEL and one.effect.predicted_ms is None]
    match row.verdict:
        case EffectVerdict.NONE:
            return f"a verdict needs {FEWEST_PROCESSES} processes"
        case EffectVerdict.BELOW_NOISE:
            within = abs(log(row.speedup)) <= log(1 + row.noise)
            return "the difference is smaller than the noise" if within else "the interval contains 1"
        case EffectVerdict.REGRESSED if kernels and row not in kernels:
            if slower := [one.effect.module for one in kernels if one.verdict is EffectVerdict.REGRESSED]:
                return f"slower alone, too: {', '.join(slower)}"
            predicted = row.predicted is not None and row.predicted < 1
            return (_host_cause(kernels) if predicted else "") or "the kernels alone are not slower"
        case EffectVerdict.REGRESSED if not kernels:
            device = next((one for one in phase if one.effect.module == "device"), row)
            if device.verdict is not EffectVerdict.REGRESSED:
                before, after = device.effect.baseline_launches or 0, device.effect.launches or 0
                launches = f": it issues {after:,} kernels instead of {before:,}" if after > before else ""
                return f"the kernels take no longer, the host does{launches}"
    return ""


def _host_cause(kernels: Iterable[EffectRow]) -> str:
    """Return which call costs the host most time, over all calls of a pass; empty if none costs it more."""
    found = []
    for effect in (row.effect for row in kernels):
        before, after = effect.baseline_host_ms, effect.host_ms
        if before is not None and after is not None and after > before:
            times = f"{milliseconds(after)} ms instead of {milliseconds(before)}"
            found.append(
                (effect.calls * (after - before), f"a call of {effect.module} takes the host {times}")
            )
    return max(found, default=(0.0, ""))[1]
