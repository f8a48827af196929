"""Committed effects for the report. What draws and compares is imported when a page needs it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kernels_bench_tools.schema.effect import EffectSummary
from kernels_bench_tools.schema.outcome import reason_of
from kernels_bench_tools.schema.record_io import ignore, read_effects

_COLUMNS = (
    *(
        "device",
        "model",
        "phase",
        "layers",
        "implementations",
        "level",
        "module",
        "calls",
        "baseline_ms",
        "candidate_ms",
    ),
    *("speedup", "speedup_low", "speedup_high", "predicted", "noise", "verdict", "cause"),
    *("baseline_tokens_per_s", "tokens_per_s", "baseline_launches", "launches"),
    *("baseline_peak_bytes", "peak_bytes"),
    *("replaced", "called", "processes", "measured", "commit"),
)


def read_effect(path: Path) -> EffectSummary | None:
    """Return the summary of a file of :func:`read_effects`; None if no line of it can be used."""
    from kernels_bench_tools.summarize.effect import effect_rows  # loads numpy

    records = read_effects(path, on_problem=ignore)
    first = next((one for one in records if one.effect), records[0] if records else None)
    if first is None or first.device is None:
        return None
    rows, others = effect_rows(records), first.effect.others if first.effect else []
    return EffectSummary(
        model=path.parent.name,
        implementations=[f"{first.op}/{first.impl}", *others],
        device=first.device,
        provenance=first.provenance,
        measured=max(record.ts for record in records),
        rows=rows,
        reason="" if rows else reason_of(first),
    )


def draw_effect(summary: EffectSummary) -> bytes:
    """Return the ladder of an effect as SVG, see :func:`kernels_bench_tools.summarize.chart.ladder.ladder_svg`.

    Empty without matplotlib, which the command does not need otherwise: cells draw the charts of operators.
    """
    try:
        from kernels_bench_tools.summarize.chart.ladder import ladder_svg  # loads matplotlib
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return b""
    return ladder_svg(summary)


def effects_csv(summaries: Iterable[EffectSummary]) -> bytes:
    """Return a line for each row of effects; ``layers`` is empty where all of the model were measured."""
    from kernels_bench_tools.summarize.export import csv_text

    lines = [
        [
            *(
                one.device.slug,
                one.model,
                row.effect.phase,
                row.effect.layers or None,
                " + ".join(one.implementations),
            ),
            *(row.effect.level, row.effect.module, row.effect.calls, row.baseline_ms, row.candidate_ms),
            *(row.speedup, row.low, row.high, row.predicted, row.noise, row.verdict.value, row.cause),
            *(row.tokens_per_s or (None, None)),
            *(row.effect.baseline_launches, row.effect.launches),
            *(row.effect.baseline_peak_bytes, row.peak_bytes),
            *(row.effect.replaced, row.effect.called, row.processes, one.measured, one.provenance.commit),
        ]
        for one in summaries
        for row in one.rows
    ]
    return csv_text(_COLUMNS, lines).encode()
