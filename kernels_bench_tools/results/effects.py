"""What implementations change in a model, by level: from committed records to rows with a verdict. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import log
from pathlib import Path
from statistics import median

import msgspec

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.codec import ignore, read_committed
from kernels_bench_tools.records.committed import effect_part
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.merging import median_of_known
from kernels_bench_tools.records.model import MODEL_LEVEL, model_and_framework, phase_sizes
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.records.record import Effect, Labelled, Part, Provenance, Record
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Ratio
from kernels_bench_tools.results.export import csv_text
from kernels_bench_tools.results.processes import by_workload
from kernels_bench_tools.results.speedup import speedup_over
from kernels_bench_tools.text.numbers import milliseconds, size
from kernels_bench_tools.text.tables import grouped

PREDICTION_SHARE = 0.1
"""A prediction is confirmed if the measured gain differs from it by at most this share, or by the noise."""


class EffectVerdict(Labelled):
    """How a measured speed-up relates to noise and to the prediction."""

    CONFIRMED = "confirmed", "faster, as predicted"
    SHORT = "short", "faster, less than predicted"
    OVER = "over", "faster, more than predicted"
    FASTER = "faster", "", "Faster; there is no prediction for a single kernel."
    BELOW_NOISE = "below_noise", "below noise", "The interval contains 1, or the difference is below noise."
    REGRESSED = "regressed", "slower"
    NONE = "none", "no verdict", "Measured in fewer than three processes."


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
    """How the logits agree, or loss and gradients, for one row of a whole model."""
    peak_bytes: int | None = None
    """Memory of a pass with the implementation in addition to weights, inputs and cache, for one row of a whole model."""

    @property
    def gain(self) -> Estimate:
        """The speed-up with its interval."""
        return Estimate.of(self.speedup, self.low, self.high)

    @property
    def tokens_per_s(self) -> tuple[float | None, float | None]:
        """New tokens a second without and with the implementation; Nones of what is not a whole pass as it is run."""
        if self.effect.level < MODEL_LEVEL or self.effect.module == "device":
            return None, None
        sizes = phase_sizes(self.effect.phase)
        tokens = 1000 * sizes.sequences * sizes.tokens
        return tokens / self.baseline_ms, tokens / self.candidate_ms

    @property
    def costs(self) -> list[tuple[str, str, str]]:
        """What a call or a whole pass does besides its time, as a name and the text without and with the implementation."""
        effect, whole = self.effect, "{:,.0f}".format
        costs = (
            ("host ms of a call", milliseconds, effect.baseline_host_ms, effect.host_ms),
            ("kernels", whole, effect.baseline_launches, effect.launches),
            ("peak memory", size, effect.baseline_peak_bytes, self.peak_bytes),
            ("tokens/s", whole, *self.tokens_per_s),
        )
        return [
            (name, text(without), text(having))
            for name, text, without, having in costs
            if without is not None and having is not None
        ]


class Breakdown(msgspec.Struct, kw_only=True):
    """Where the time of a forward pass without the implementation goes."""

    parts: list[Part]
    """The kernels, the longest first, and then what is outside of them."""
    idle: dict[str, float]
    """Milliseconds in which the device waits, by how the model was run: ``eager`` or ``CUDA graph``."""

    @property
    def total_ms(self) -> float:
        return sum(part.ms for part in self.parts)

    @property
    def kernels(self) -> list[Part]:
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
    """Of the code of each that was measured, see :func:`kernels_bench_tools.records.code.code_digest`; empty if not known."""
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
        return grouped((row.effect.phase, row) for row in self.rows)

    def has_other_code(self, now: Mapping[str, Set[str]]) -> bool:
        """Return whether code has changed since a measurement; ``now`` has digests of the cells of implementations that exist."""
        return any(set(self.digests.get(name, ())) - {""} - cells for name, cells in now.items() if cells)


def read_effect(root: Path, path: Path) -> EffectSummary | None:
    """Return the summary of a file of effects of a project; None if no line of it can be used."""
    records = read_committed(root, path, ignore)
    measured = [(record, record.effect) for record in records if record.effect]
    first = next((record for record, _ in measured), records[0] if records else None)
    if first is None or first.device is None:
        return None
    implementations = [f"{first.op}/{first.impl}", *(first.effect.others if first.effect else ())]
    digests = (
        zip(implementations, [record.provenance.code_digest, *effect.other_digests], strict=False)
        for record, effect in measured
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
    return [_row(processes) for processes in by_workload(timed)[0].values()]


def _row(records: Sequence[Record]) -> EffectRow:
    effects = [record.effect for record in records if record.effect is not None]
    baseline = [
        msgspec.structs.replace(record, lat_ms=effect.baseline, impl="")
        for record, effect in zip(records, effects, strict=True)
    ]
    speedup = speedup_over(records, baseline)
    base = median(effect.baseline.p50 for effect in effects)
    again = [(effect.baseline.p50, effect.again.p50) for effect in effects if effect.again is not None]
    noise = max((abs(first / second - 1) for first, second in again if second > 0), default=0.0)
    shares = [
        each.predicted_ms / each.baseline.p50 for each in effects if each.predicted_ms and each.baseline.p50
    ]
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
    by_kernel = grouped(((part.module, part.calls), part) for effect in effects for part in effect.parts)
    return [
        msgspec.structs.replace(
            parts[0],
            ms=median(part.ms for part in parts),
            alone_ms=median_of_known(part.alone_ms for part in parts),
        )
        for parts in by_kernel.values()
    ]


def verdict_of_effect(speedup: Ratio, predicted: float | None, noise: float, processes: int) -> EffectVerdict:
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


_Columns = dict[str, Callable[[EffectSummary, EffectRow], str | int | float | None]]


def _fields(*names: str) -> _Columns:
    return {
        name: lambda _, row, name=name: getattr(row if hasattr(row, name) else row.effect, name)  # type: ignore[misc]
        for name in names
    }


_COLUMNS: _Columns = {
    "device": lambda summary, _: summary.device.slug,
    "model": lambda summary, _: summary.model,
    "phase": lambda _, row: row.effect.phase,
    "layers": lambda _, row: row.effect.layers or None,
    "implementations": lambda summary, _: " + ".join(summary.implementations),
    **_fields("level", "module", "calls", "baseline_ms", "candidate_ms", "speedup"),
    "speedup_low": lambda _, row: row.low,
    "speedup_high": lambda _, row: row.high,
    **_fields("predicted", "noise", "verdict"),
    "baseline_tokens_per_s": lambda _, row: row.tokens_per_s[0],
    "tokens_per_s": lambda _, row: row.tokens_per_s[1],
    **_fields("baseline_launches", "launches", "baseline_peak_bytes", "peak_bytes", "replaced", "called"),
    **_fields("processes"),
    "measured": lambda summary, _: summary.measured,
    "commit": lambda summary, _: summary.provenance.commit,
}


def effects_csv(summaries: Iterable[EffectSummary]) -> bytes:
    """Return a line for each row of effects; ``layers`` is empty where all of the model were measured."""
    rows = ((summary, row) for summary in summaries for row in summary.rows)
    lines = ([value(*both) for value in _COLUMNS.values()] for both in rows)
    return csv_text(list(_COLUMNS), lines).encode()


@dataclass(frozen=True)
class Effects:
    """The committed effects of a project, which are read and drawn only for pages that show them."""

    root: Path = Path()
    """The project's folder."""
    files: Sequence[Path] = ()

    def files_of(self, model: str) -> list[Path]:
        """Return the files of a model, including those measured in transformers."""
        return [file for file in self.files if model_and_framework(file.parent.name)[0] == model]

    def of(self, model: str) -> list[EffectSummary]:
        """Return what was measured of a model: GPUs first, then by device and implementation."""
        known = [summary for file in self.files_of(model) if (summary := self._summaries[file])]
        return sorted(known, key=lambda summary: (summary.device.kind == "cpu", summary.device.slug))

    def files_with(self, operator: str, implementation: str) -> list[Path]:
        """Return the files of an implementation, alone or together with others."""
        part = effect_part(f"{operator}/{implementation}")
        return [file for file in self.files if part in file.stem.split("+")]

    def models_with(self, operator: str, implementation: str) -> list[str]:
        files = self.files_with(operator, implementation)
        return sorted({model_and_framework(file.parent.name)[0] for file in files if self._summaries[file]})

    @cached_property
    def _summaries(self) -> dict[Path, EffectSummary | None]:
        return {file: read_effect(self.root, file) for file in self.files}


@dataclass(frozen=True)
class DeviceEffects:
    device: Device
    summaries: Sequence[EffectSummary]

    @cached_property
    def phases(self) -> dict[str, list[tuple[EffectSummary, list[EffectRow]]]]:
        """The summaries with their rows by phase: passes over most tokens first, training last."""
        of_phase = grouped(
            (phase, (summary, rows)) for summary in self.summaries for phase, rows in summary.phases.items()
        )
        sizes = {phase: phase_sizes(phase) for phase in of_phase}
        order = sorted(of_phase, key=lambda it: (sizes[it].trains, -sizes[it].tokens, sizes[it].sequences))
        return {phase: of_phase[phase] for phase in order}

    @cached_property
    def breakdowns(self) -> dict[str, Breakdown]:
        """Where the time of each phase goes: of the whole model if that was measured, and the newest."""
        breakdowns = {}
        for phase, summaries in self.phases.items():
            known = [
                (not rows[0].effect.layers, summary.measured, breakdown)
                for summary, rows in summaries
                if (breakdown := breakdown_of(rows))
            ]
            if known:
                breakdowns[phase] = max(known, key=lambda it: it[:2])[2]
        return breakdowns

    def best(self, phase: str) -> tuple[EffectSummary, EffectRow] | None:
        passes = [
            (summary, row)
            for summary, rows in self.phases.get(phase, ())
            for row in rows
            if row.tokens_per_s[0] and not row.effect.layers
        ]
        return min(passes, key=lambda it: it[1].candidate_ms, default=None)

    @property
    def failed(self) -> list[EffectSummary]:
        return [summary for summary in self.summaries if not summary.rows]


def effects_by_device(summaries: Iterable[EffectSummary]) -> list[DeviceEffects]:
    by_device = grouped((summary.device.slug, summary) for summary in summaries)
    return [DeviceEffects(own[0].device, own) for own in by_device.values()]
