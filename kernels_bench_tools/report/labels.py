"""Labels of statuses and verdicts, a glyph and words, so that colour is never the only sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.record import Labelled, Status
from kernels_bench_tools.records.summary import ChangeKind, Verdict
from kernels_bench_tools.results.effects import EffectVerdict


class Label(NamedTuple):
    """A glyph, words and the CSS class that colours both."""

    glyph: str
    word: str
    tone: str


L = TypeVar("L", bound=Labelled)


def _labels(looks: Mapping[L, tuple[str, str]]) -> dict[L, Label]:
    """Return labels with the words of values, given the glyph and the class of each."""
    return {of: Label(glyph, of.label, tone) for of, (glyph, tone) in looks.items()}


_STATUSES = _labels(
    {
        **dict.fromkeys(Status, ("✗", "bad")),
        Status.OK: ("✓", "good"),
        Status.DISTURBED: ("~", "muted"),
        Status.INCORRECT: ("≠", "bad"),
        Status.EXCEEDS_PHYSICS: ("≫", "bad"),
        Status.REJECTED: ("⊗", "bad"),
        Status.UNSUPPORTED: ("⊘", "muted"),
        Status.ABSENT: ("○", "muted"),
    }
)
VERDICTS = _labels(
    {
        Verdict.BASELINE: ("●", "muted"),
        Verdict.FASTER: ("▲", "good"),
        Verdict.SLOWER: ("▼", "bad"),
        Verdict.SAME: ("=", "plain"),
        Verdict.AMBIGUOUS: ("≈", "plain"),
        Verdict.SEPARATE: ("∥", "muted"),
        Verdict.FEW_PROCESSES: ("·", "muted"),
        Verdict.NONE: ("–", "muted"),
    }
)
EFFECTS = _labels(
    {
        **dict.fromkeys(EffectVerdict, ("▲", "good")),
        EffectVerdict.BELOW_NOISE: ("≈", "plain"),
        EffectVerdict.REGRESSED: ("▼", "bad"),
        EffectVerdict.NONE: ("·", "muted"),
    }
)
CHANGES = _labels(
    {
        ChangeKind.FAILS: ("✗", "bad"),
        ChangeKind.SLOWER: ("▼", "bad"),
        ChangeKind.FASTER: ("▲", "good"),
        ChangeKind.PASSES: ("✓", "good"),
        ChangeKind.NEW: ("+", "good"),
        ChangeKind.GONE: ("−", "muted"),
    }
)
CHECKS = {True: Label("✓", "passed", "good"), False: Label("✗", "failed", "bad")}
"""By whether a check passed."""


def status_label(status: Status | None) -> Label:
    """Return the label of a status; None is a cell that has not run."""
    return _STATUSES[status] if status else Label("○", "not run", "muted")


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
