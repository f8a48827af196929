"""Labels of statuses and verdicts, a glyph and words, so that colour is never the only sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import ChangeKind, Verdict
from kernels_bench_tools.results.effects import EffectVerdict


class Label(NamedTuple):
    """A glyph, words and the CSS class that colours both."""

    glyph: str
    word: str
    tone: str


_STATUS = {
    Status.OK: ("✓", "good"),
    Status.DISTURBED: ("~", "muted"),
    Status.INCORRECT: ("≠", "bad"),
    Status.EXCEEDS_PHYSICS: ("≫", "bad"),
    Status.REJECTED: ("⊗", "bad"),
    Status.UNSUPPORTED: ("⊘", "muted"),
    Status.ABSENT: ("○", "muted"),
}
"""Glyph and class of each status; a cross for all others."""
VERDICTS = {
    Verdict.BASELINE: Label("●", Verdict.BASELINE.label, "muted"),
    Verdict.FASTER: Label("▲", Verdict.FASTER.label, "good"),
    Verdict.SLOWER: Label("▼", Verdict.SLOWER.label, "bad"),
    Verdict.SAME: Label("=", Verdict.SAME.label, "plain"),
    Verdict.AMBIGUOUS: Label("≈", Verdict.AMBIGUOUS.label, "plain"),
    Verdict.SEPARATE: Label("∥", Verdict.SEPARATE.label, "muted"),
    Verdict.FEW_PROCESSES: Label("·", Verdict.FEW_PROCESSES.label, "muted"),
    Verdict.NONE: Label("–", Verdict.NONE.label, "muted"),
}
EFFECTS = {
    EffectVerdict.CONFIRMED: Label("▲", EffectVerdict.CONFIRMED.label, "good"),
    EffectVerdict.SHORT: Label("▲", EffectVerdict.SHORT.label, "good"),
    EffectVerdict.OVER: Label("▲", EffectVerdict.OVER.label, "good"),
    EffectVerdict.FASTER: Label("▲", EffectVerdict.FASTER.label, "good"),
    EffectVerdict.BELOW_NOISE: Label("≈", EffectVerdict.BELOW_NOISE.label, "plain"),
    EffectVerdict.REGRESSED: Label("▼", EffectVerdict.REGRESSED.label, "bad"),
    EffectVerdict.NONE: Label("·", EffectVerdict.NONE.label, "muted"),
}
CHANGES = {
    ChangeKind.FAILS: Label("✗", "fails now", "bad"),
    ChangeKind.SLOWER: Label("▼", "slower", "bad"),
    ChangeKind.FASTER: Label("▲", "faster", "good"),
    ChangeKind.PASSES: Label("✓", "passes now", "good"),
    ChangeKind.NEW: Label("+", "new", "good"),
    ChangeKind.GONE: Label("−", "gone", "muted"),
}
CHECKS = {True: Label("✓", "passed", "good"), False: Label("✗", "failed", "bad")}
"""By whether a check passed."""


def status_label(status: Status | None) -> Label:
    """Return the label of a status; None is a cell that has not run."""
    if status is None:
        return Label("○", "not run", "muted")
    glyph, tone = _STATUS.get(status, ("✗", "bad"))
    return Label(glyph, status.label, tone)


def cell_label(cell: CellRun) -> Label:
    """Return the label of a cell's status; one that its notebook expects is not marked as bad."""
    label = status_label(cell.status)
    return Label(label.glyph, f"{label.word}, as expected", "muted") if cell.expected else label


def peak_name(name: str) -> str:
    """Return the name of a measured peak.

    >>> peak_name("copy"), peak_name("matmul_bfloat16")
    ('copy', 'bfloat16 matmul')
    """
    kind, _, dtype = name.partition("_")
    return f"{dtype} {kind}" if dtype else kind


def peak_unit(name: str) -> str:
    return "TFLOP/s" if name.startswith("matmul") else "GB/s"


def sorted_peaks(rates: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the measured peaks of memory, then those of arithmetic."""
    return sorted(rates.items(), key=lambda pair: peak_unit(pair[0]))
