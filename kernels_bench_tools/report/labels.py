"""Labels of statuses, verdicts and other closed sets: a glyph and words, so that colour is never the only sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kernels_bench_tools.schema.record import CacheState, Status, Timer
from kernels_bench_tools.schema.summary import Verdict


class Label(NamedTuple):
    """A glyph, words and the CSS class that colours both."""

    glyph: str
    word: str
    tone: str


_STATUS = {
    None: Label("○", "not run", "muted"),
    Status.OK: Label("✓", "ok", "good"),
    Status.INCORRECT: Label("≠", "incorrect", "bad"),
    Status.EXCEEDS_PHYSICS: Label("≫", "above the roofline", "bad"),
    Status.REJECTED: Label("⊗", "rejected", "bad"),
    Status.ERROR: Label("✗", "error", "bad"),
    Status.OOM: Label("✗", "out of memory", "bad"),
    Status.TIMEOUT: Label("✗", "timeout", "bad"),
    Status.CRASHED: Label("✗", "crashed", "bad"),
    Status.UNSUPPORTED: Label("⊘", "unsupported", "muted"),
    Status.INVALID: Label("✗", "invalid output", "bad"),
    Status.ABSENT: Label("○", "not measured", "muted"),
}
_VERDICT = {
    Verdict.BASELINE: Label("●", "baseline", "muted"),
    Verdict.FASTER: Label("▲", "faster", "good"),
    Verdict.SLOWER: Label("▼", "slower", "bad"),
    Verdict.SAME: Label("=", "same", "plain"),
    Verdict.AMBIGUOUS: Label("≈", "ambiguous", "plain"),
    Verdict.NONE: Label("–", "not comparable", "muted"),
}
TIMERS: Mapping[Timer, str] = {
    Timer.CUPTI: "CUPTI",
    Timer.EVENTS: "events",
    Timer.MONOTONIC: "host clock",
    Timer.UNKNOWN: "unknown",
}
CACHES: Mapping[CacheState, str] = {
    CacheState.READ_FLUSH: "cold, flushed",
    CacheState.ROTATED: "cold, rotated inputs",
    CacheState.HOT: "hot",
    CacheState.UNKNOWN: "unknown",
}


def status_label(status: Status | None) -> Label:
    """Return the label of a status; None is a cell that has not run."""
    return _STATUS[status]


def check_label(passed: bool) -> Label:
    """Return the label of a check's result."""
    return Label("✓", "passed", "good") if passed else Label("✗", "failed", "bad")


def verdict_label(verdict: Verdict) -> Label:
    """Return the label of a verdict."""
    return _VERDICT[verdict]


def peak_name(name: str) -> str:
    """Return the name of a measured peak.

    >>> peak_name("copy"), peak_name("matmul_bfloat16")
    ('copy', 'bfloat16 matmul')
    """
    kind, _, dtype = name.partition("_")
    return f"{dtype} {kind}" if dtype else kind


def peak_unit(name: str) -> str:
    """Return the unit of a measured peak."""
    return "TFLOP/s" if name.startswith("matmul") else "GB/s"


def sorted_peaks(rates: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the measured peaks of memory, then those of arithmetic."""
    return sorted(rates.items(), key=lambda pair: peak_unit(pair[0]))
