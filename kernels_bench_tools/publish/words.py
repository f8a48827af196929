"""How an end or a verdict is shown: a glyph and a word, so that colour never says it alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kernels_bench_tools.records import CacheState, Flag, Regime, Status, Timer
from kernels_bench_tools.summaries import Point, Row, Verdict


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
_FLAG = {
    Flag.STREAM_ESCAPE: (
        "work outside the call",
        "work ran on the device outside of the call that launched it",
    ),
    Flag.THREAD_INJECTION: ("thread left behind", "the call started a thread or process that outlived it"),
    Flag.LAZY_OUTPUT: ("lazy output", "the output is no plain tensor with memory of its own on the device"),
    Flag.TIMER_TAMPER: ("timer tampered with", "functions that the harness measures with were replaced"),
    Flag.STALE_OUTPUT: ("stale output", "the output did not follow its inputs, or a timed call's was wrong"),
    Flag.INPUT_MUTATED: ("inputs changed", "a call changed its inputs"),
    Flag.ALIASED_OUTPUT: ("output aliased", "the output shares memory with an input or an earlier output"),
    Flag.PRECISION: ("less precise", "its error exceeds twice that of torch's own operator in the same type"),
    Flag.NONDETERMINISTIC: ("not deterministic", "two calls with the same inputs gave different bits"),
    Flag.FALLBACK: ("fallback", "none of the kernels that it declares was launched"),
    Flag.HOST_BOUND: ("host-bound", "submitting a call takes longer than the device needs for it"),
    Flag.NEAR_FLOOR: ("near the floor", "less than five times the time of a kernel that does nothing"),
    Flag.TIMER_DISAGREEMENT: (
        "timers disagree",
        "events take longer than the kernels by more than events cost",
    ),
    Flag.PROFILER_SLOWED: (
        "profiler slows it",
        "its kernels run slower while the profiler watches, so the time is by events, without it",
    ),
    Flag.DRIFT: ("drift", "the last third of the samples differs from the first by more than 1 %"),
    Flag.BIMODAL: ("two modes", "the samples fall into two groups"),
    Flag.THROTTLED: ("throttled", "the device slowed its clocks down for power or heat"),
    Flag.NEIGHBOUR: ("neighbour", "another process used the device"),
    Flag.SENTINEL: ("sentinels differ", "reference kernels ran at another speed than in the other processes"),
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


def flag_word(flag: Flag) -> str:
    """Return a flag in a word or two."""
    return _FLAG[flag][0]


def flag_sentence(flag: Flag) -> str:
    """Return what a flag means."""
    return _FLAG[flag][1]


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
