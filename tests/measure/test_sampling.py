import time
from collections.abc import Callable, Iterable
from itertools import count, cycle
from typing import Any

import pytest
from builds import measured_latency

from kernels_bench_tools.measure.timing.cupti import (
    Activity,
    MarkersMissingError,
    NoKernelError,
    kernel_table,
    split_batch,
)
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


MARK = "at::cuda::(anonymous namespace)::spin_kernel(long)"
FLUSH = ("flush", 0, 50_000)
FIRST = (
    FLUSH,
    (MARK, 60_000, 20_000),
    ("first", 81_000, 3_000),
    ("second", 85_000, 4_000),
    (MARK, 90_000, 1_000),
)
SECOND = tuple((name, start + 100_000, duration) for name, start, duration in FIRST)
LAST = ("flush", 200_000, 50_000)


def activities(*of_calls: Any) -> list[Activity]:
    return [Activity(*one) for one in of_calls]


def test_a_call_has_the_activities_between_its_markers_and_the_span_has_their_gaps() -> None:
    batch = split_batch(activities(*FIRST, *SECOND, LAST), 2)

    for call in batch.calls:
        assert call.ms == pytest.approx(0.007)
        assert call.span_ms == pytest.approx(0.008)
        assert call.kernels == (("first", 0.003), ("second", 0.004))
    assert [kernel.name for kernel in kernel_table(batch.calls)] == ["first", "second"]
    assert batch.marker_ns == ((20_000, 1_000), (20_000, 1_000))


def test_a_missing_marker_is_an_error() -> None:
    with pytest.raises(MarkersMissingError, match="3 of 4"):
        split_batch(activities(*FIRST, *SECOND[:-1]), 2)


def test_a_call_without_kernels_is_an_error() -> None:
    with pytest.raises(NoKernelError, match="1 of 2"):
        split_batch(activities((MARK, 0, 100), (MARK, 200, 1), *SECOND), 2)


def test_the_kernel_table_sums_the_launches_of_one_call() -> None:
    twice = activities((MARK, 0, 1), ("k", 10, 1_000_000), ("k", 20, 2_000_000), (MARK, 30, 1))

    (kernel,) = kernel_table(split_batch(twice, 1).calls)

    assert (kernel.name, kernel.count, kernel.ms) == ("k", 2, pytest.approx(3.0))


@pytest.mark.parametrize(
    ("seen", "own", "escaped"),
    [
        ((*FIRST, *SECOND, LAST), {"flush": 3}, []),
        ((*FIRST, ("stranger", 92_000, 1_000), *SECOND), {"flush": 3}, ["stranger"]),
        ((*FIRST, *SECOND), {}, ["flush", "flush"]),
        ((*FIRST, *SECOND, LAST), {"flush": 2}, ["flush"]),  # more of that name than flushes
        (((MARK, 0, 20_000), ("beside", 5_000, 4_000), (MARK, 30_000, 1)), {}, ["beside"]),
        (((MARK, 0, 20_000), ("k", 21_000, 1), ("late", 22_000, 90_000), (MARK, 23_000, 1)), {}, ["late"]),
        (((MARK, 0, 20_000), ("k", 19_500, 5_000), (MARK, 24_000, 1)), {}, []),  # the clock's resolution
    ],
)
def test_work_outside_of_a_calls_markers_escapes_unless_it_is_the_harness_s_own(
    seen: Any, own: dict[str, int], escaped: list[str]
) -> None:
    calls = sum(MARK in one for one in seen) // 2

    assert list(split_batch(activities(*seen), calls, own).escaped) == escaped
