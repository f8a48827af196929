"""What implementations change in a model, by level: from committed records to rows with a verdict. Times are milliseconds.

What loads numpy or draws is imported when it is needed: a build without effects needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from kernels_bench_tools.records.build import code_digest
from kernels_bench_tools.records.codec import ignore, read_effects
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import MODEL_LEVEL, phase_sizes
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.records.record import Effect, Labelled, Part, Provenance, Record
from kernels_bench_tools.records.summary import FEWEST_PROCESSES
from kernels_bench_tools.text import grouped, milliseconds, size

if TYPE_CHECKING:
    from kernels_bench_tools.results.compare import Speedup

PREDICTION_SHARE = 0.1
"""A prediction is confirmed if the measured gain differs from it by at most this share, or by the noise."""


class EffectVerdict(Labelled):
    """How a measured speed-up relates to noise and to the prediction."""

    CONFIRMED = "confirmed", "faster, as predicted"
    SHORT = "short", "faster, less than predicted"
    OVER = "over", "faster, more than predicted"
    FASTER = "faster", "", "Faster; for a single kernel nothing is predicted."
    BELOW_NOISE = "below_noise", "below noise", "Not distinguishable from no change."
    REGRESSED = "regressed", "slower"
    NONE = "none", "no verdict", "Measured in too few processes."


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
    cause: str = ""
    """Why the verdict is not that of the prediction, in one line; empty if there is nothing to explain."""
    agreement: dict[str, float]
    """How the logits agree, or loss and gradients, for one row of a whole model."""
    peak_bytes: int | None = None
    """Memory of a pass with the implementation in addition to weights, inputs and cache, for one row of a whole model."""

    @property
    def tokens_per_s(self) -> tuple[float, float] | None:
        """New tokens a second without and with the implementation; None of what is not a whole pass as it is run."""
        if self.effect.level < MODEL_LEVEL or self.effect.module == "device":
            return None
        sizes = phase_sizes(self.effect.phase)
        tokens = 1000 * sizes.sequences * sizes.tokens
        return tokens / self.baseline_ms, tokens / self.candidate_ms

    @property
    def costs(self) -> list[tuple[str, str, str]]:
        """What a whole pass does besides taking time, as a name and the text without and with the implementation."""
        found = []
        if self.effect.baseline_launches is not None and self.effect.launches is not None:
            found.append(("kernels", f"{self.effect.baseline_launches:,}", f"{self.effect.launches:,}"))
        if self.effect.baseline_peak_bytes is not None and self.peak_bytes is not None:
            found.append(("peak memory", size(self.effect.baseline_peak_bytes), size(self.peak_bytes)))
        if self.tokens_per_s:
            without, having = self.tokens_per_s
            found.append(("tokens/s", f"{without:,.0f}", f"{having:,.0f}"))
        return found


class Breakdown(msgspec.Struct, kw_only=True):
    """Where the time of a forward pass without the implementation goes."""

    parts: list[Part]
    """The kernels, the longest first, and then what is outside of them."""
    idle: dict[str, float]
    """Milliseconds in which the device waits, by how the model was run: ``eager`` or ``CUDA graph``."""

    @property
    def total_ms(self) -> float:
        """Time of all parts."""
        return sum(part.ms for part in self.parts)

    @property
    def kernels(self) -> list[Part]:
        """The parts that were measured alone, too."""
        return [part for part in self.parts if part.alone_ms is not None]


def breakdown_of(rows: Iterable[EffectRow]) -> Breakdown | None:
    """Return where the time of a forward pass goes, given its rows; None if its kernels were not measured."""
    models = {row.effect.module: row for row in rows if row.effect.level == MODEL_LEVEL}
    parts = next((row.effect.parts for row in models.values() if row.effect.parts), None)
    if parts is None:
        return None
    device = models.pop("device", None)
    idle = {how: max(row.baseline_ms - device.baseline_ms, 0.0) for how, row in models.items() if device}
    return Breakdown(parts=parts, idle=idle)


class EffectSummary(msgspec.Struct, kw_only=True):
    """What an implementation, or several together, changes in a model on a device."""

    model: str
    implementations: list[str]
    """Each as ``operator/implementation``."""
    digests: dict[str, list[str]]
    """Of the code of each that was measured, see :func:`code_digest`; empty if not known."""
    device: Device
    provenance: Provenance
    """Provenance of the first record."""
    measured: str
    """Time of the newest record."""
    rows: list[EffectRow]
    """By phase, the levels of each in ascending order."""
    reason: str = ""
    """Why there are no rows."""

    @property
    def phases(self) -> dict[str, list[EffectRow]]:
        """The rows of each phase."""
        return grouped((row.effect.phase, row) for row in self.rows)

    def has_other_code(self, code: Mapping[str, Iterable[str]]) -> bool:
        """Return whether code has changed since a measurement; ``code`` has the cells of each implementation that exists."""
        return any(
            set(self.digests.get(name, ())) - {"", *map(code_digest, cells)}
            for name, cells in code.items()
            if cells
        )

    @property
    def predicted_phases(self) -> dict[str, list[EffectRow]]:
        """The rows of each phase of which anything was predicted; of the others only the whole model was measured."""
        return {phase: rows for phase, rows in self.phases.items() if any(row.predicted for row in rows)}


def read_effect(path: Path, phase: str = "") -> EffectSummary | None:
    """Return the summary of a file of :func:`read_effects`, or of one phase; None if no line of it can be used."""
    records = read_effects(path, on_problem=ignore)
    if phase:
        records = [one for one in records if one.effect and one.effect.phase == phase]
    first = next((one for one in records if one.effect), records[0] if records else None)
    if first is None or first.device is None:
        return None
    implementations = [f"{first.op}/{first.impl}", *(first.effect.others if first.effect else ())]
    digests = (
        zip(implementations, [one.provenance.code_digest, *one.effect.other_digests], strict=False)
        for one in records
        if one.effect
    )
    rows = effect_rows(records)
    return EffectSummary(
        model=path.parent.name,
        implementations=implementations,
        digests=grouped(chain.from_iterable(digests)),
        device=first.device,
        provenance=first.provenance,
        measured=max(record.ts for record in records),
        rows=rows,
        reason="" if rows else reason_of(first),
    )


def effect_rows(records: Iterable[Record]) -> list[EffectRow]:
    """Return a row for each level, module and phase of one implementation's records, in their order."""
    timed = (record for record in records if record.effect is not None and record.lat_ms is not None)
    from kernels_bench_tools.results.merge import by_workload

    found, _ = by_workload(timed)
    rows = [_row(processes) for processes in found.values()]
    for row in rows:
        row.cause = _cause(row, [one for one in rows if one.effect.phase == row.effect.phase])
    return rows


def _row(records: Sequence[Record]) -> EffectRow:
    from kernels_bench_tools.results.compare import compare

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


def draw_effect(summary: EffectSummary) -> bytes:
    """Return the ladder of an effect as SVG, see :func:`kernels_bench_tools.chart.ladder.ladder_svg`.

    Empty without matplotlib, which the command does not need otherwise: cells draw the charts of operators.
    """
    try:
        from kernels_bench_tools.chart.ladder import ladder_svg  # loads matplotlib
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return b""
    return ladder_svg(summary)


_COLUMNS: dict[str, Callable[[EffectSummary, EffectRow], str | int | float | None]] = {
    "device": lambda one, _: one.device.slug,
    "model": lambda one, _: one.model,
    "phase": lambda _, row: row.effect.phase,
    "layers": lambda _, row: row.effect.layers or None,
    "implementations": lambda one, _: " + ".join(one.implementations),
    "level": lambda _, row: row.effect.level,
    "module": lambda _, row: row.effect.module,
    "calls": lambda _, row: row.effect.calls,
    "baseline_ms": lambda _, row: row.baseline_ms,
    "candidate_ms": lambda _, row: row.candidate_ms,
    "speedup": lambda _, row: row.speedup,
    "speedup_low": lambda _, row: row.low,
    "speedup_high": lambda _, row: row.high,
    "predicted": lambda _, row: row.predicted,
    "noise": lambda _, row: row.noise,
    "verdict": lambda _, row: row.verdict.value,
    "cause": lambda _, row: row.cause,
    "baseline_tokens_per_s": lambda _, row: row.tokens_per_s and row.tokens_per_s[0],
    "tokens_per_s": lambda _, row: row.tokens_per_s and row.tokens_per_s[1],
    "baseline_launches": lambda _, row: row.effect.baseline_launches,
    "launches": lambda _, row: row.effect.launches,
    "baseline_peak_bytes": lambda _, row: row.effect.baseline_peak_bytes,
    "peak_bytes": lambda _, row: row.peak_bytes,
    "replaced": lambda _, row: row.effect.replaced,
    "called": lambda _, row: row.effect.called,
    "processes": lambda _, row: row.processes,
    "measured": lambda one, _: one.measured,
    "commit": lambda one, _: one.provenance.commit,
}


def effects_csv(summaries: Iterable[EffectSummary]) -> bytes:
    """Return a line for each row of effects; ``layers`` is empty where all of the model were measured."""
    from kernels_bench_tools.results.export import csv_text

    rows = ((one, row) for one in summaries for row in one.rows)
    lines = ([value(one, row) for value in _COLUMNS.values()] for one, row in rows)
    return csv_text(list(_COLUMNS), lines).encode()
