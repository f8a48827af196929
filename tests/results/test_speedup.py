from typing import Any

import pytest
from made_records import record, source
from msgspec.structs import replace

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.records.record import CacheState, Flag, Quantities, Record, Status, Timer, Timing
from kernels_bench_tools.records.summary import Ratio, Verdict
from kernels_bench_tools.results.processes import limitation_of
from kernels_bench_tools.results.speedup import readings, speedup_over
from kernels_bench_tools.results.summary import compare_records
from kernels_bench_tools.stats import ratio_of, verdict_of


def processes(record: Record, count: int = 3) -> list[Record]:
    """Return the record as that of several processes."""
    return [replace(record, process=number, run=f"{record.run}-{number}") for number in range(count)]


def compared(candidate: Record, baseline: Record) -> Ratio:
    return speedup_over(processes(candidate), processes(baseline))


def test_speedup_is_baseline_over_candidate():
    fast = compared(record("fast", 0.1), record("base", 0.2))
    slow = compared(record("slow", 0.2), record("base", 0.1))

    assert (round(fast.value, 9), fast.verdict) == (2.0, Verdict.FASTER)
    assert (round(slow.value, 9), slow.verdict) == (0.5, Verdict.SLOWER)


def test_a_record_compared_with_itself_is_the_baseline():
    found = compared(record("base", 0.2), record("base", 0.2))

    assert (found.value, found.low, found.high, found.verdict) == (1.0, 1.0, 1.0, Verdict.BASELINE)


@pytest.mark.parametrize(
    ("p50", "half_width", "verdict"),
    [
        (0.1004, 0.0001, Verdict.SAME),  # apart, but by less than matters
        (0.1004, 0.0500, Verdict.AMBIGUOUS),  # nearly equal, but it may be 5 % as well
        (0.1006, 0.0001, Verdict.SLOWER),
        (0.1006, 0.0050, Verdict.SAME),  # apart by 0.6 %, and by 1.3 % at the most
        (0.1015, 0.0110, Verdict.AMBIGUOUS),  # not known well enough
        (0.1015, 0.0010, Verdict.SLOWER),  # known so well that they are apart
        (0.1100, 0.0800, Verdict.AMBIGUOUS),
        (0.0900, 0.0010, Verdict.FASTER),
    ],
)
def test_a_verdict_needs_a_significant_and_relevant_difference(p50, half_width, verdict):
    ours, base = (Estimate(time, time * (1 - half_width), time * (1 + half_width)) for time in (p50, 0.1))

    assert verdict_of(ratio_of(base, ours)) is verdict


@pytest.mark.parametrize(
    "status",
    [Status.INCORRECT, Status.REJECTED, Status.EXCEEDS_PHYSICS, Status.ERROR, Status.OOM, Status.UNSUPPORTED],
)
def test_without_both_correct_there_is_no_speedup(status):
    other = record("other", 0.01 if status.ran else None, status=status)

    for found in (compared(other, record("base", 0.1)), compared(record("base", 0.1), other)):
        assert (found.value, found.low, found.high, found.verdict) == (None, None, None, Verdict.NONE)


@pytest.mark.parametrize(("ours", "base"), [(1, 1), (2, 2), (1, 3), (3, 1)])
def test_fewer_than_three_processes_give_an_interval_without_a_verdict(ours, base):
    found = speedup_over(processes(record("ours", 0.1), ours), processes(record("base", 0.2), base))

    assert (round(found.value, 9), found.verdict) == (2.0, Verdict.FEW_PROCESSES)
    assert found.low is not None


def test_different_timers_or_cache_states_are_ambiguous():
    base = record("base", 0.1)
    by_clock, hot = record("ours", 0.01), record("ours", 0.01)
    by_clock.lat_ms.timer = Timer.MONOTONIC
    hot.lat_ms.cache = CacheState.HOT

    assert compared(by_clock, base).verdict is Verdict.AMBIGUOUS
    assert compared(hot, base).verdict is Verdict.AMBIGUOUS


@pytest.mark.parametrize(
    ("p50", "sealed", "verdict"),
    [
        (0.09, 0.09, Verdict.FASTER),
        (0.09, 0.11, Verdict.AMBIGUOUS),  # time was hidden, or the harness got in its way
        (0.11, 0.09, Verdict.AMBIGUOUS),
        (0.098, 0.101, Verdict.FASTER),  # as much as sealed calls vary by
    ],
)
def test_sealed_calls_have_to_agree_on_who_is_much_faster(p50, sealed, verdict):
    of_base, of_ours = (Quantities(sealed=Timing(p50=ms, reps=6)) for ms in (0.1, sealed))

    found = compared(record("ours", p50, quantities=of_ours), record("base", 0.1, quantities=of_base))

    assert found.verdict is verdict


def test_a_record_without_a_workload_holds_for_the_missing_ones():
    base = source("base", [0.1, 0.2, 0.3]).records
    ours = [*source("ours", [0.05]).records, *source("ours", status=Status.CRASHED, reason="SIGSEGV").records]

    rows = compare_records(ours, base)

    assert [row.status for row in rows] == [Status.OK, Status.CRASHED, Status.CRASHED]
    assert [row.baseline_ms for row in rows] == [0.1, 0.2, 0.3]
    assert [row.speedup for row in rows] == [2.0, None, None]
    assert rows[1].reason == "SIGSEGV"


def test_the_status_of_a_baseline_without_a_rank_is_kept():
    base = source("base", [0.1], flags=[Flag.DISTURBED]).records

    (row,) = compare_records(source("ours", [0.05]).records, base)
    (alone,) = compare_records(source("ours", [0.05]).records, [])

    assert (row.speedup, row.baseline_ms, row.baseline_status) == (None, 0.1, Status.DISTURBED)
    assert alone.baseline_status is Status.ABSENT


def test_a_reason_is_one_line():
    broken = record("a", status=Status.ERROR, reason="first\n   second\tthird")
    long = record("a", status=Status.ERROR, reason="x" * 2000)

    assert reason_of(broken) == "first second third"
    assert len(reason_of(long)) == 300


def test_the_reason_of_a_wrong_result_has_its_error():
    assert reason_of(record("a", 0.1, status=Status.INCORRECT, absmax=0.25)).endswith("by up to 0.25")
    judged = record("a", 0.1, status=Status.INCORRECT, corr={"reason": "3 NaN"})
    assert reason_of(judged) == "3 NaN"


SESSION = {
    "sentinels": {"copy": [0.5010, 0.5080], "null": [0.0007]},
    "ceilings": {"read": 4337.0, "matmul_bfloat16": 700.0},
}


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        (SESSION, Verdict.FASTER),
        # As much as within a session, and the sentinel after other workloads is another.
        ({"sentinels": {"copy": [0.5015, 0.5030]}, "ceilings": {"read": 4325.0}}, Verdict.FASTER),
        ({"sentinels": {"copy": [0.5044, 0.5080]}, "ceilings": {"read": 4337.0}}, Verdict.SEPARATE),
        ({"sentinels": {"copy": [0.5010, 0.5080]}, "ceilings": {"read": 4402.0}}, Verdict.SEPARATE),
        ({"ceilings": {"matmul_bfloat16": 709.0}}, Verdict.FASTER),  # products vary more
        ({"ceilings": {"matmul_bfloat16": 712.0}}, Verdict.SEPARATE),
        ({"sentinels": {"copy": [5e-324]}}, Verdict.SEPARATE),
        ({"sentinels": {"copy": [0.5010]}}, Verdict.FASTER),  # only what both have is compared
        ({"sentinels": {"null": [0.0010]}}, Verdict.FASTER),  # without readings, the same hour
    ],
)
def test_a_verdict_needs_a_device_that_was_equally_fast_for_both(fields: dict[str, Any], verdict):
    found = compared(record("fast", 0.1, **fields), record("base", 0.2, **SESSION))

    assert (round(found.value, 9), found.verdict) == (2.0, verdict)
    # Between two runs, what runs differ by is added to the interval.
    assert (found.low < 2 / 1.025 and found.high > 2 * 1.025) == (verdict is Verdict.SEPARATE)


def test_readings_are_medians_over_the_processes() -> None:
    found = [record("a", 0.1, sentinels={"copy": [ms, 9.0], "null": [1.0]}) for ms in (0.50, 0.60, 0.51)]

    assert readings(found) == {"sentinel copy": 0.51}


@pytest.mark.parametrize(
    ("ts", "copy", "verdict"),
    [
        ("2026-11-20T11:00:00Z", 20.0, Verdict.FASTER),
        ("2026-11-20T11:00:01Z", 20.0, Verdict.SEPARATE),
        ("2026-11-21T10:00:00Z", 44.0, Verdict.FASTER),
        ("2026-11-21T10:00:00Z", 20.0, Verdict.SEPARATE),
        ("2026-11-21T10:00:00Z", None, Verdict.SEPARATE),
    ],
)
def test_on_a_cpu_rows_of_another_hour_need_peaks_that_agree(ts, copy, verdict):
    device = Device(kind="cpu", name="CPU", slug="cpu")
    base = record("base", 0.2, device=device, ceilings={"copy": 46.0})
    ours = record("ours", 0.1, device=device, ts=ts, ceilings={} if copy is None else {"copy": copy})

    found = compared(ours, base)
    assert (found.verdict, found.low is None) == (verdict, verdict is Verdict.SEPARATE)


def test_a_limitation_has_no_escape_sequences_of_the_message():
    one = record("a", 0.1, corr={"refused": ["odd rows"], "refusal": "Error: \x1b[91m\x1b[1mtoo wide\x1b[0m"})

    assert limitation_of([one]) == "refuses odd rows (Error: too wide)"
