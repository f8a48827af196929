import pytest

from kernels_bench_tools.measure.timing.cupti import (
    Activity,
    MarkersMissingError,
    NoKernelError,
    kernel_table,
    split_batch,
)

MARK = "at::cuda::(anonymous namespace)::spin_kernel(long)"


def activities(*names_and_times: tuple[str, int, int]) -> list[Activity]:
    return [Activity(*entry) for entry in names_and_times]


def one_call(start: int) -> list[Activity]:
    return activities(
        ("flush", start, 50_000),
        (MARK, start + 60_000, 20_000),
        ("first", start + 81_000, 3_000),
        ("second", start + 85_000, 4_000),
        (MARK, start + 90_000, 1_000),
    )


def test_a_call_has_the_activities_that_start_between_its_markers() -> None:
    calls = split_batch([*one_call(0), *one_call(100_000), *activities(("flush", 200_000, 50_000))], 2).calls

    assert [call.ms for call in calls] == pytest.approx([0.007, 0.007])
    assert [call.kernels for call in calls] == [(("first", 0.003), ("second", 0.004))] * 2


def test_the_span_includes_gaps_between_kernels() -> None:
    (call,) = split_batch(one_call(0), 1).calls

    assert call.ms == pytest.approx(0.007)
    assert call.span_ms == pytest.approx(0.008)


def test_a_flush_is_never_among_the_kernels() -> None:
    calls = split_batch([*one_call(0), *one_call(100_000)], 2).calls

    assert {kernel.name for kernel in kernel_table(calls)} == {"first", "second"}


def test_a_kernel_that_overlaps_the_opening_marker_counts() -> None:
    (call,) = split_batch(activities((MARK, 0, 100), ("beside", 50, 10), (MARK, 200, 1)), 1).calls

    assert call.kernels == (("beside", 1e-5),)


def test_a_missing_marker_is_an_error() -> None:
    with pytest.raises(MarkersMissingError, match="3 of 4 markers"):
        split_batch([*one_call(0), *one_call(100_000)[:-1]], 2)


def test_a_call_without_kernels_is_an_error() -> None:
    empty = activities((MARK, 0, 100), (MARK, 200, 1))

    with pytest.raises(NoKernelError, match="1 of 2 calls launched no kernel"):
        split_batch([*empty, *one_call(1_000)], 2)


def test_the_kernel_table_sums_the_launches_of_one_call() -> None:
    twice = activities((MARK, 0, 1), ("k", 10, 1_000_000), ("k", 20, 2_000_000), (MARK, 30, 1))

    (kernel,) = kernel_table(split_batch(twice, 1).calls)

    assert (kernel.name, kernel.count, kernel.ms) == ("k", 2, pytest.approx(3.0))


def test_nothing_escapes_from_ordinary_calls() -> None:
    batch = split_batch(
        [*one_call(0), *one_call(100_000), *activities(("flush", 200_000, 50_000))], 2, {"flush": 3}
    )

    assert batch.escaped == ()
    assert batch.marker_ns == ((20_000, 1_000), (20_000, 1_000))


def test_work_that_overlaps_the_opening_marker_escapes() -> None:
    batch = split_batch(activities((MARK, 0, 20_000), ("beside", 5_000, 4_000), (MARK, 30_000, 1)), 1)

    assert batch.escaped == ("beside",)


def test_work_that_overlaps_the_closing_marker_escapes() -> None:
    batch = split_batch(
        activities((MARK, 0, 20_000), ("fine", 21_000, 1_000), ("late", 22_000, 90_000), (MARK, 23_000, 1)), 1
    )

    assert batch.escaped == ("late",)


def test_work_between_calls_escapes_unless_it_is_the_harness_s_own() -> None:
    seen = [*one_call(0), *activities(("stranger", 92_000, 1_000)), *one_call(100_000)]

    assert split_batch(seen, 2, {"flush": 3}).escaped == ("stranger",)
    assert set(split_batch(seen, 2).escaped) == {"flush", "stranger"}


def test_more_kernels_with_a_flush_s_name_than_flushes_escape() -> None:
    seen = [*one_call(0), *activities(("flush", 92_000, 50_000), ("flush", 150_000, 50_000))]

    assert split_batch(seen, 1, {"flush": 2}).escaped == ("flush",)


def test_adjacent_timestamps_are_no_escape() -> None:
    batch = split_batch(activities((MARK, 0, 20_000), ("k", 19_500, 5_000), (MARK, 24_000, 1)), 1)

    assert batch.escaped == ()
