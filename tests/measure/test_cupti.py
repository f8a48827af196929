from typing import Any

import pytest

from kernels_bench_tools.measure.timing.cupti import (
    Activity,
    MarkersMissingError,
    NoKernelError,
    kernel_table,
    split_batch,
)

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
