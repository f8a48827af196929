"""Committed effects for the report. What draws and compares is imported when a page needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from kernels_bench_tools.records.codec import ignore, read_effects
from kernels_bench_tools.records.effect import EffectRow, EffectSummary
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.text import grouped

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


def read_effect(path: Path, phase: str = "") -> EffectSummary | None:
    """Return the summary of a file of :func:`read_effects`, or of one phase; None if no line of it can be used."""
    from kernels_bench_tools.results.effect import effect_rows  # loads numpy

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


def effects_csv(summaries: Iterable[EffectSummary]) -> bytes:
    """Return a line for each row of effects; ``layers`` is empty where all of the model were measured."""
    from kernels_bench_tools.results.export import csv_text

    rows = ((one, row) for one in summaries for row in one.rows)
    lines = ([value(one, row) for value in _COLUMNS.values()] for one, row in rows)
    return csv_text(list(_COLUMNS), lines).encode()
