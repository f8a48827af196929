import time
from itertools import cycle

from kernels_bench_tools.measure.timing.sampling import (
    LOOKS,
    MIN_COARSE,
    MIN_SAMPLES,
    Call,
    SamplingLimits,
    affordable,
    drifted,
    sample,
    sample_flags,
    summarize,
    timing,
    warm_up,
)
from kernels_bench_tools.records.record import CacheState, Flag, Latency, Timer

TICK = 32e-6


def latency_of(samples: list[float]) -> Latency:
    return summarize(
        [Call(ms) for ms in samples],
        timer=Timer.CUPTI,
        cache=CacheState.READ_FLUSH,
        input_sets=1,
        warmup=0,
        stop_reason="converged",
    )


PATIENT = SamplingLimits(warmup_seconds=5.0, sample_seconds=5.0)


def constant(count: int) -> list[Call]:
    return [Call(1.0)] * count


def test_steady_samples_converge_at_the_first_test() -> None:
    calls, reason = sample(constant, PATIENT, 1e-6)

    assert (len(calls), reason) == (LOOKS[0], "converged")


def test_noisy_samples_end_at_the_cap() -> None:
    values = iter(range(10**6))

    calls, reason = sample(
        lambda n: [Call(1.0 + next(values) % 7) for _ in range(n)],
        SamplingLimits(warmup_seconds=1, sample_seconds=60, max_samples=100),
        1e-6,
    )

    assert (len(calls), reason) == (100, "max_samples")


def test_a_call_of_few_ticks_needs_many_samples_but_no_interval_below_a_tick() -> None:
    values = iter(range(10**6))
    limits = SamplingLimits(warmup_seconds=1, sample_seconds=60, tick_ms=1.0)

    calls, reason = sample(lambda n: [Call(5.0 + next(values) % 2) for _ in range(n)], limits, 1e-6)

    assert (len(calls), reason) == (MIN_COARSE, "converged")


def test_sampling_goes_on_while_the_median_of_a_short_call_lies_between_two_of_its_times() -> None:
    values = cycle([100.0, 101.0, 103.0, 104.0])
    limits = SamplingLimits(warmup_seconds=1, sample_seconds=60, tick_ms=1.0)

    calls, reason = sample(lambda n: [Call(next(values)) for _ in range(n)], limits, 1e-6)

    assert (len(calls), reason) == (limits.max_samples, "max_samples")


def test_slow_calls_stop_at_the_time_limit_with_enough_samples_for_an_interval() -> None:
    def slow(count: int) -> list[Call]:
        time.sleep(0.02 * count)
        return [Call(float(i)) for i in range(count)]

    calls, reason = sample(slow, SamplingLimits(warmup_seconds=1, sample_seconds=0.05), 0.02)

    assert (len(calls), reason) == (MIN_SAMPLES, "max_seconds")


def test_samples_keep_their_order() -> None:
    values = iter([float(value % 13) for value in range(10**4)])

    calls, _ = sample(
        lambda n: [Call(next(values)) for _ in range(n)],
        SamplingLimits(warmup_seconds=1, sample_seconds=60, max_samples=60),
        1e-6,
    )

    assert [call.ms for call in calls] == [float(value % 13) for value in range(60)]


def test_warm_up_goes_on_until_the_time_per_call_is_steady() -> None:
    values = iter([2.0 ** max(0, 5 - n // 10) for n in range(1000)])

    warm = warm_up(lambda n: [Call(next(values)) for _ in range(n)], PATIENT)

    assert 50 < warm.calls < 100


def test_warm_up_of_a_slow_call_does_not_overrun_its_time_by_a_window() -> None:
    def slow(count: int) -> list[Call]:
        time.sleep(0.1 * count)
        return [Call(100.0)] * count

    warm = warm_up(slow, SamplingLimits(warmup_seconds=0.15, sample_seconds=1))

    assert warm.calls <= 2


def test_a_latency_holds_every_sample_and_the_interval_of_the_median() -> None:
    calls = [Call(float(value)) for value in range(100, 0, -1)]

    latency = summarize(
        calls, timer=Timer.MONOTONIC, cache=CacheState.HOT, input_sets=1, warmup=3, stop_reason="converged"
    )

    assert latency.raw_times == [call.ms for call in calls]
    assert latency.p50 == 50.5
    assert (latency.ci_low, latency.ci_high) == (40.0, 61.0)
    assert latency.reps == 100
    assert latency.has_warnings
    assert latency.tail_ratio is not None
    assert latency.drift < -0.5


def test_samples_have_no_digits_below_a_nanosecond() -> None:
    assert latency_of([0.19660800000000002] * 6).raw_times == [0.196608] * 6


def test_a_rise_beyond_noise_is_a_drift() -> None:
    rising = latency_of([1.0 + 0.001 * number for number in range(60)])

    assert drifted(rising)
    assert Flag.DRIFT in sample_flags(rising)


def test_a_rise_within_noise_is_no_drift() -> None:
    noisy = latency_of([1.0 + 0.1 * ((7 * number) % 10) + 0.0008 * number for number in range(60)])

    assert noisy.drift > 0.01
    assert not drifted(noisy)


def test_one_tick_is_no_drift_and_two_ticks_are_not_two_groups() -> None:
    stepping = latency_of([20 * TICK] * 30 + [21 * TICK] * 30)

    assert not drifted(stepping, TICK)
    assert drifted(stepping)
    assert sample_flags(stepping, TICK) == []


def test_alternating_samples_are_bimodal() -> None:
    assert sample_flags(latency_of([1.0, 1.2] * 30), TICK) == [Flag.BIMODAL]


def test_a_secondary_quantity_has_an_interval_and_no_samples() -> None:
    found = timing([float(value) for value in range(1, 31)])

    assert (found.p50, found.ci_low, found.ci_high, found.reps) == (15.5, 10.0, 21.0, 30)
    assert timing([1.0]).ci_low is None


def test_slow_calls_are_made_often_enough_for_an_interval_and_no_more() -> None:
    assert affordable(0.1, 1e-6) == 30
    assert affordable(0.1, 0.01) == 10
    assert affordable(0.1, 1.0) == MIN_SAMPLES
