"""What every flag is called and means: the one table that pages, tables and reasons take their words from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kernels_bench_tools.schema.record import Flag


class FlagWords(NamedTuple):
    """A flag in words."""

    word: str
    """For a tag: a word or two."""
    clause: str
    """For a reason or a column: what the implementation did, or what happened to it."""
    meaning: str
    """For whoever asks: what was found."""


FLAG_WORDS: Mapping[Flag, FlagWords] = {
    Flag.STREAM_ESCAPE: FlagWords(
        "work outside the call",
        "worked outside of the timed call",
        "work ran on the device outside of the call that launched it",
    ),
    Flag.THREAD_INJECTION: FlagWords(
        "thread left behind",
        "left a thread or process running",
        "the call started a thread or process that outlived it",
    ),
    Flag.LAZY_OUTPUT: FlagWords(
        "lazy output",
        "returned something other than a plain tensor",
        "the output is no plain tensor with memory of its own on the device",
    ),
    Flag.TIMER_TAMPER: FlagWords(
        "timer tampered with",
        "replaced functions that it is timed with",
        "functions that the harness measures with were replaced",
    ),
    Flag.STALE_OUTPUT: FlagWords(
        "stale output",
        "its output did not follow its inputs",
        "the output did not follow its inputs, or a timed call's was wrong",
    ),
    Flag.INPUT_MUTATED: FlagWords("inputs changed", "changed its inputs", "a call changed its inputs"),
    Flag.ALIASED_OUTPUT: FlagWords(
        "output aliased",
        "its output shares memory",
        "the output shares memory with an input or an earlier output",
    ),
    Flag.PRECISION: FlagWords(
        "less precise",
        "less precise than torch",
        "its error exceeds twice that of torch's own operator in the same type",
    ),
    Flag.NONDETERMINISTIC: FlagWords(
        "not deterministic", "not deterministic", "two calls with the same inputs gave different bits"
    ),
    Flag.FALLBACK: FlagWords(
        "fallback", "ran other kernels than it declares", "none of the kernels that it declares was launched"
    ),
    Flag.HOST_BOUND: FlagWords(
        "host-bound", "host-bound", "submitting a call takes longer than the device needs for it"
    ),
    Flag.NEAR_FLOOR: FlagWords(
        "near the floor",
        "near the launch floor",
        "less than five times the time of a kernel that does nothing",
    ),
    Flag.TIMER_DISAGREEMENT: FlagWords(
        "timers disagree",
        "timers disagree",
        "events take longer than the kernels by more than events cost",
    ),
    Flag.PROFILER_SLOWED: FlagWords(
        "profiler slows it",
        "timed without the profiler",
        "its kernels run slower while the profiler watches, so the time is by events, without it",
    ),
    Flag.DRIFT: FlagWords(
        "drift", "drifted", "the last third of the samples differs from the first by more than 1 %"
    ),
    Flag.BIMODAL: FlagWords("two modes", "two groups of times", "the samples fall into two groups"),
    Flag.THROTTLED: FlagWords(
        "throttled", "throttled", "the device slowed its clocks down for power or heat"
    ),
    Flag.NEIGHBOUR: FlagWords("neighbour", "shared the device", "another process used the device"),
    Flag.SENTINEL: FlagWords(
        "sentinels differ",
        "device ran at another speed",
        "reference kernels ran at another speed than in the other processes",
    ),
}
"""Every flag's words."""
