"""What tables and reasons say in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernels_bench_tools.records import REJECTING, Flag, Record, Status

FLAG_WORDS: Mapping[Flag, str] = {
    Flag.STREAM_ESCAPE: "worked outside of the timed call",
    Flag.THREAD_INJECTION: "left a thread or process running",
    Flag.LAZY_OUTPUT: "returned something other than a plain tensor",
    Flag.TIMER_TAMPER: "replaced functions that it is timed with",
    Flag.STALE_OUTPUT: "its output did not follow its inputs",
    Flag.INPUT_MUTATED: "changed its inputs",
    Flag.ALIASED_OUTPUT: "its output shares memory",
    Flag.PRECISION: "less precise than torch",
    Flag.NONDETERMINISTIC: "not deterministic",
    Flag.FALLBACK: "ran other kernels than it declares",
    Flag.HOST_BOUND: "host-bound",
    Flag.NEAR_FLOOR: "near the launch floor",
    Flag.TIMER_DISAGREEMENT: "timers disagree",
    Flag.PROFILER_SLOWED: "timed without the profiler",
    Flag.DRIFT: "drifted",
    Flag.BIMODAL: "two groups of times",
    Flag.THROTTLED: "throttled",
    Flag.NEIGHBOUR: "shared the device",
    Flag.SENTINEL: "device ran at another speed",
}
"""Each flag, short enough for a column."""


def flag_words(flags: Iterable[Flag]) -> str:
    """Return flags in words, as one line; empty for none."""
    return ", ".join(FLAG_WORDS[flag] for flag in flags)


def reason_of(record: Record) -> str:
    """Return in one line why a record has no latency or no rank; empty for one that is ok."""
    if record.outcome is Status.OK:
        return ""
    rejecting = [flag for flag in Flag if flag in REJECTING and flag in record.flags]
    if record.outcome is Status.REJECTED and rejecting:
        return flag_words(rejecting)
    if record.err is not None:
        kind, told = record.err.type, record.err.msg
        # An exception's class says what its message often does not; a status is shown anyway.
        named = record.outcome is Status.ERROR and kind != record.outcome.value and kind not in told
        return one_line(f"{kind}: {told}" if named else told or kind)
    if record.outcome is Status.INCORRECT:
        judged = record.corr.get("reason")
        if isinstance(judged, str) and judged:
            return one_line(judged)
        error = "" if record.absmax is None else f", by up to {record.absmax:.3g}"
        return f"differs from the reference{error}"
    return f"{record.outcome.value}, and its record does not say why"


def one_line(text: str, limit: int = 300) -> str:
    """Return ``text`` with every run of white space made one space, cut to ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"
