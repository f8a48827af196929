"""How an end or a verdict is shown: a glyph and a word, so that colour never says it alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kernels_bench_tools.schema.record import CacheState, Flag, Regime, Status, Timer
from kernels_bench_tools.schema.summary import Point, Row, Verdict


class Mark(NamedTuple):
    """A glyph, its word and the CSS class that colours both."""

    glyph: str
    word: str
    tone: str


_STATUS = {
    None: Mark("○", "not run", "muted"),
    Status.OK: Mark("✓", "ok", "good"),
    Status.INCORRECT: Mark("≠", "incorrect", "bad"),
    Status.EXCEEDS_PHYSICS: Mark("≫", "exceeds physics", "bad"),
    Status.REJECTED: Mark("⊗", "rejected", "bad"),
    Status.ERROR: Mark("✗", "error", "bad"),
    Status.OOM: Mark("✗", "out of memory", "bad"),
    Status.TIMEOUT: Mark("✗", "timeout", "bad"),
    Status.CRASHED: Mark("✗", "crashed", "bad"),
    Status.UNSUPPORTED: Mark("⊘", "unsupported", "muted"),
    Status.INVALID: Mark("✗", "invalid output", "bad"),
    Status.ABSENT: Mark("○", "not tried here", "muted"),
}
_VERDICT = {
    Verdict.BASELINE: Mark("●", "baseline", "muted"),
    Verdict.FASTER: Mark("▲", "faster", "good"),
    Verdict.SLOWER: Mark("▼", "slower", "bad"),
    Verdict.SAME: Mark("=", "same", "plain"),
    Verdict.AMBIGUOUS: Mark("≈", "ambiguous", "plain"),
    Verdict.NONE: Mark("–", "not comparable", "muted"),
}
_TIMER = {
    Timer.CUPTI: "CUPTI",
    Timer.EVENTS: "events",
    Timer.MONOTONIC: "host clock",
    Timer.UNKNOWN: "unknown",
}
_CACHE = {
    CacheState.READ_FLUSH: "cold, flushed",
    CacheState.ROTATED: "cold, rotated inputs",
    CacheState.HOT: "hot",
    CacheState.UNKNOWN: "unknown",
}
_REGIME = {
    Regime.LAUNCH: "launch-bound",
    Regime.L2: "in cache",
    Regime.TRANSITION: "cache and memory",
    Regime.HBM: "memory-bound",
    Regime.COMPUTE: "compute-bound",
}
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def status_mark(status: Status | None) -> Mark:
    """Return how a status is shown; None is a cell that has not run."""
    return _STATUS[status]


def passed_mark(passed: bool) -> Mark:
    """Return how the outcome of a check is shown."""
    return Mark("✓", "passed", "good") if passed else Mark("✗", "failed", "bad")


def verdict_mark(verdict: Verdict) -> Mark:
    """Return how a verdict is shown."""
    return _VERDICT[verdict]


def timer_words(timer: Timer) -> str:
    """Return what took the time, in words."""
    return _TIMER[timer]


def cache_words(cache: CacheState) -> str:
    """Return what the caches held, in words."""
    return _CACHE[cache]


def verdict_counts(row: Row) -> list[tuple[int, Mark]]:
    """Return how often each verdict occurs over the row's workloads, most frequent first."""
    counts = Counter(point.verdict for point in row.points if point.verdict is not Verdict.NONE)
    return [(count, _VERDICT[verdict]) for verdict, count in counts.most_common()]


def regime_words(regime: Regime) -> str:
    """Return what bounds a workload, in words."""
    return _REGIME[regime]


def flagged(row: Row) -> list[tuple[Flag, list[str]]]:
    """Return the flags of a row's points, each with the workloads that have it."""
    found: dict[Flag, list[str]] = {}
    for point in row.points:
        for flag in point.flags:
            found.setdefault(flag, []).append(point.workload)
    return list(found.items())


def nearest_ceiling(row: Row) -> Point | None:
    """Return the point that comes nearest to its ceiling; None if none has one."""
    points = [point for point in row.points if point.fraction is not None]
    return max(points, key=lambda point: point.fraction or 0.0, default=None)


def ceiling_words(name: str) -> str:
    """Return what a ceiling is called.

    >>> ceiling_words("copy"), ceiling_words("matmul_bfloat16")
    ('copy', 'bfloat16 matmul')
    """
    kind, _, dtype = name.partition("_")
    return f"{dtype} {kind}" if dtype else kind


def ceilings_by_kind(rates: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the ceilings of memory and then those of arithmetic, each in their order."""
    return sorted(rates.items(), key=lambda pair: ceiling_unit(pair[0]))


def ceiling_unit(name: str) -> str:
    """Return the unit of a ceiling."""
    return "TFLOP/s" if name.startswith("matmul") else "GB/s"


def process_words(points: Iterable[Point]) -> str:
    """Return in how many processes points were measured: ``"3 processes"``; empty if nothing was."""
    counts = sorted({point.processes for point in points if point.p50_ms is not None})
    if not counts:
        return ""
    told = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{told} process{'es' if counts[-1] != 1 else ''}"


def largest(row: Row, name: str) -> float | None:
    """Return the largest value of the points' field ``name``; None if no point has one."""
    values = [getattr(point, name) for point in row.points]
    return max((value for value in values if value is not None), default=None)


def plain_text(text: str) -> str:
    """Return a process's output as text: without terminal codes, with line feeds only."""
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    # A progress bar returns to the start of its line; its last state is what a terminal shows.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROL.sub("\ufffd", "\n".join(lines))
