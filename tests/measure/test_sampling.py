import time
from collections.abc import Callable, Iterable
from itertools import count, cycle

import pytest
from builds import measured_latency

from kernels_bench_tools.measure.timing.sampling import (
    LOOKS,
    MIN_COARSE,
    MIN_SAMPLES,
    Call,
    SamplingLimits,
    drifted,
    sample,
    sample_flags,
)
from kernels_bench_tools.records.record import Flag

TICK = 32e-6


def limits(sample_seconds: float = 60, **changed: float) -> SamplingLimits:
    return SamplingLimits(warmup_seconds=5.0, sample_seconds=sample_seconds, **changed)


def drawn(values: Iterable[float]) -> Callable[[int], list[Call]]:
    left = iter(values)
    return lambda n: [Call(next(left)) for _ in range(n)]


@pytest.mark.parametrize(
    ("values", "given", "expected"),
    [
        (cycle([1.0]), limits(), (LOOKS[0], "converged")),
        ((1.0 + n % 7 for n in count()), limits(max_samples=100), (100, "max_samples")),
        # A call of few ticks needs many samples, but no interval below a tick.
        ((5.0 + n % 2 for n in count()), limits(tick_ms=1.0), (MIN_COARSE, "converged")),
        # The median of a short call lies between two of its times.
        (cycle([100.0, 101.0, 103.0, 104.0]), limits(tick_ms=1.0), (2000, "max_samples")),
    ],
)
def test_sampling_ends_when_the_median_has_converged_or_at_the_cap(
    values: Iterable[float], given: SamplingLimits, expected: tuple[int, str]
) -> None:
    calls, reason = sample(drawn(values), given, 1e-6)

    assert (len(calls), reason) == expected


def test_slow_calls_stop_at_the_time_limit_with_enough_samples_for_an_interval() -> None:
    def slow(count: int) -> list[Call]:
        time.sleep(0.02 * count)
        return [Call(float(i)) for i in range(count)]

    calls, reason = sample(slow, limits(sample_seconds=0.05), 0.02)

    assert (len(calls), reason) == (MIN_SAMPLES, "max_seconds")


def test_a_latency_holds_every_sample_and_the_interval_of_the_median() -> None:
    samples = [float(value) for value in range(100, 0, -1)]

    latency = measured_latency(*samples)

    assert latency.raw_times == samples
    assert (latency.p50, latency.ci_low, latency.ci_high, latency.reps) == (50.5, 40.0, 61.0, 100)
    assert latency.has_warnings
    assert latency.tail_ratio is not None
    assert latency.drift < -0.5
    assert measured_latency(*[0.19660800000000002] * 6).raw_times == [0.196608] * 6  # nanoseconds


@pytest.mark.parametrize(
    ("samples", "tick", "flags"),
    [
        ([1.0 + 0.001 * n for n in range(60)], 0.0, [Flag.DRIFT]),
        ([1.0 + 0.1 * ((7 * n) % 10) + 0.0008 * n for n in range(60)], 0.0, []),  # a rise within noise
        ([20 * TICK] * 30 + [21 * TICK] * 30, TICK, []),  # neither a drift nor two groups
        ([20 * TICK] * 30 + [21 * TICK] * 30, 0.0, [Flag.DRIFT, Flag.BIMODAL]),
        ([1.0, 1.2] * 30, TICK, [Flag.BIMODAL]),
    ],
)
def test_flags_of_samples_that_rise_or_fall_into_two_groups(
    samples: list[float], tick: float, flags: list[Flag]
) -> None:
    latency = measured_latency(*samples)

    assert sample_flags(latency, tick) == flags
    assert drifted(latency, tick) == (Flag.DRIFT in flags)
