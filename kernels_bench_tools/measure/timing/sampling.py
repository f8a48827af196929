"""Number of timed calls: warm up until the time is steady, then sample until the median has converged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from time import perf_counter
from typing import Annotated

from msgspec import Meta

from kernels_bench_tools.records.record import CacheState, Flag, Latency, Milliseconds, Timer, Timing
from kernels_bench_tools.stats import (
    CONFIDENCE,
    drift,
    is_bimodal,
    median,
    median_interval,
    quantiles,
    tail_ratio,
)

MIN_SAMPLES = 6
"""The fewest samples with a 95 % interval of the median."""
LOOKS = (30, 60, 120, 240, 480, 960, 1920)
"""Sample counts at which convergence is tested; testing after every sample would stop too early by chance."""
WINDOW, STEADY = 10, 0.02
"""Warm-up ends when the medians of two successive windows of calls differ by at most this."""
PRECISION = 0.003
"""Largest distance from the median to either end of its interval at convergence, relative to the median."""

MAX_DRIFT = 0.01
"""A larger change from the first third of the samples to the last is flagged."""
MIN_COARSE, MAX_TICKS = 240, 1.25
"""The fewest samples, and at convergence the widest interval in ticks of the timer, of a call so short that one tick exceeds
the precision. Short calls often take one of two times, and their median lies between: on an H200, medians of ten processes
of two kernels of 1.6 us varied by 0.9 to 1.1 % with intervals of two ticks. A tick may differ by 1 or 2 ns."""
NS_DIGITS = 6
"""Decimals of milliseconds by a clock with nanoseconds."""


@dataclass(frozen=True)
class Call:
    """One timed call; times in milliseconds."""

    ms: Annotated[float, Meta(gt=0, le=1e9)]
    """Summed duration of its kernels, or time by the clock."""
    span_ms: Milliseconds | None = None
    """From the start of the first kernel to the end of the last one."""
    kernels: tuple[tuple[str, Milliseconds], ...] = ()
    """Name and duration of each kernel, by start time."""


@dataclass(frozen=True, kw_only=True)
class SamplingLimits:
    warmup_seconds: float
    min_warmup_seconds: float = 0.0
    """For GPUs, which take a while to raise their clocks: an H200 a millisecond, after two seconds without work."""
    sample_seconds: float
    max_samples: int = 2000
    tick_ms: float = 0.0
    """Resolution of the timer; intervals cannot be narrower."""
    precision: float = PRECISION


Draw = Callable[[int], Sequence[Call]]
"""A function that times the given number of further calls."""


@dataclass(frozen=True)
class WarmUp:
    calls: int
    seconds_per_call: float
    """Wall-clock seconds, including all overhead."""


def warm_up(draw: Draw, limits: SamplingLimits) -> WarmUp:
    """Call until two successive windows have about the same median, or the time limit is reached."""
    start = perf_counter()
    calls, previous = 0, nan
    size = 1  # slow calls must not exceed the limit by a whole window
    while True:
        median = quantiles([call.ms for call in draw(size)], [0.5])[0]
        calls += size
        elapsed = perf_counter() - start
        steady = size == WINDOW and abs(median - previous) <= STEADY * previous
        if elapsed >= limits.warmup_seconds or (steady and elapsed >= limits.min_warmup_seconds):
            return WarmUp(calls, elapsed / calls)
        previous = median if size == WINDOW else nan
        affordable = int((limits.warmup_seconds - elapsed) / (elapsed / calls))
        size = max(1, min(WINDOW, affordable))


def sample(draw: Draw, limits: SamplingLimits, seconds_per_call: float) -> tuple[list[Call], str]:
    """Time calls until the median has converged or a limit is reached; return them and the record's ``stop_reason``."""
    start = perf_counter()
    calls: list[Call] = []
    for look in (*(n for n in LOOKS if n < limits.max_samples), limits.max_samples):
        while len(calls) < look:
            left = limits.sample_seconds - (perf_counter() - start)
            affordable = int(left / seconds_per_call)
            if affordable < 1 and len(calls) >= MIN_SAMPLES:
                return calls, "max_seconds"
            wanted = max(affordable, MIN_SAMPLES - len(calls))
            calls += draw(min(look - len(calls), wanted))
            seconds_per_call = (perf_counter() - start) / len(calls)
        if _converged([call.ms for call in calls], limits):
            return calls, "converged"
    return calls, "max_samples"


def _converged(samples: Sequence[float], limits: SamplingLimits) -> bool:
    interval = median_interval(samples)
    if interval is None:
        return False
    median = quantiles(samples, [0.5])[0]
    if limits.tick_ms > limits.precision * median:
        return len(samples) >= MIN_COARSE and interval[1] - interval[0] <= MAX_TICKS * limits.tick_ms
    return max(median - interval[0], interval[1] - median) <= limits.precision * median


def summarize(
    calls: Sequence[Call],
    *,
    timer: Timer,
    cache: CacheState,
    input_sets: int,
    warmup: int,
    stop_reason: str,
    tick_ms: float = 0.0,
) -> Latency:
    """Return the latency for the record: all samples, quantiles, and the interval of the median."""
    samples = [round(call.ms, NS_DIGITS) for call in calls]
    p10, p25, p75, p90 = quantiles(samples, [0.1, 0.25, 0.75, 0.9])
    p50 = round(median(samples, tick_ms), NS_DIGITS)
    interval = median_interval(samples)
    if interval:
        interval = min(interval[0], p50), max(interval[1], p50)
    return Latency(
        p10=p10,
        p50=p50,
        p90=p90,
        mean=sum(samples) / len(samples),
        iqr=p75 - p25,
        raw_times=samples,
        reps=len(samples),
        warmup=warmup,
        has_warnings=p75 - p25 > 0.1 * p50,
        ci_low=interval[0] if interval else None,
        ci_high=interval[1] if interval else None,
        confidence=CONFIDENCE if interval else None,
        timer=timer,
        cache=cache,
        input_sets=input_sets,
        stop_reason=stop_reason,
        tick_ms=tick_ms or None,
        tail_ratio=tail_ratio(samples),
        drift=drift(samples),
    )


def drifted(latency: Latency, tick_ms: float = 0.0) -> bool:
    """Return whether the samples drifted by more than 1 % and two ticks, and the thirds' intervals do not overlap."""
    if latency.drift is None or abs(latency.drift) <= MAX_DRIFT:
        return False
    third = len(latency.raw_times) // 3
    first, last = (median_interval(part) for part in (latency.raw_times[:third], latency.raw_times[-third:]))
    if first is None or last is None or abs(latency.drift) * latency.p50 <= 2 * tick_ms:
        return False
    return first[1] < last[0] or last[1] < first[0]


def sample_flags(latency: Latency, tick_ms: float = 0.0) -> list[Flag]:
    flags = [Flag.DRIFT] if drifted(latency, tick_ms) else []
    # Two neighbouring ticks of a short kernel are not two groups.
    grouped = (latency.p90 or 0.0) - (latency.p10 or 0.0) > 2 * tick_ms and is_bimodal(latency.raw_times)
    return [*flags, Flag.BIMODAL] if grouped else flags


def timing(samples: Sequence[float]) -> Timing:
    """Return the median of samples in milliseconds, with its interval."""
    interval = median_interval(samples) or (None, None)
    return Timing(
        p50=quantiles(samples, [0.5])[0], ci_low=interval[0], ci_high=interval[1], reps=len(samples)
    )


def affordable(seconds: float, seconds_per_call: float) -> int:
    """Return how many calls fit into this time: at least ``MIN_SAMPLES``, at most 30."""
    return max(MIN_SAMPLES, min(30, int(seconds / max(seconds_per_call, 1e-9))))
