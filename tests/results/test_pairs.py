"""Any two implementations of a view, compared."""

from typing import Any

import pytest
from devices import EPYC, H200
from made_records import SHAPES, record
from msgspec.structs import replace

from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.summary import Pair, Verdict
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.summary import reversed_pair, summarize

FIRST = {"ceilings": {"read": 4337.0}, "ts": "2026-11-20T10:00:00Z"}
SECOND = {"ceilings": {"read": 4500.0}, "ts": "2026-11-22T10:00:00Z"}
THIRD = {"ceilings": {"read": 4700.0}, "ts": "2026-11-24T10:00:00Z"}


def measured(name: str, *times: float, processes: int = 3, **fields: Any) -> Source:
    records = [
        replace(record(name, time, shape, **fields), process=number, run=f"{name}-{number}")
        for time, shape in zip(times, SHAPES, strict=False)
        for number in range(processes)
    ]
    return Source(records=records, front=FrontMatter(baseline=name == "base"), measured_now=True)


def pairs(*sources: Source) -> dict[tuple[str, str], Pair]:
    (view,) = summarize("op", "Op", sources, pairs=True).devices
    return {(pair.implementation, pair.over): pair for pair in view.pairs}


def test_each_two_implementations_are_compared_once_the_faster_first():
    found = pairs(measured("base", 0.4), measured("fast", 0.1), measured("good", 0.2))

    assert list(found) == [("fast", "good"), ("fast", "base"), ("good", "base")]
    ratio = found["fast", "good"].ratios[0]
    assert (round(ratio.value, 9), ratio.verdict, ratio.separate) == (2.0, Verdict.FASTER, False)
    assert ratio.low < 2.0 < ratio.high


def test_two_of_one_session_have_its_verdict_though_the_baseline_is_of_another():
    found = pairs(
        measured("base", 0.4, **FIRST), measured("one", 0.1, **SECOND), measured("two", 0.102, **SECOND)
    )

    assert found["one", "base"].ratios[0].separate
    ratio = found["one", "two"].ratios[0]
    assert (ratio.verdict, ratio.separate) == (Verdict.FASTER, False)
    assert ratio.high / ratio.low < 1.01


@pytest.mark.parametrize(("time", "verdict"), [(0.12, Verdict.FASTER), (0.102, Verdict.AMBIGUOUS)])
def test_two_of_different_sessions_are_compared_by_their_speed_ups_over_the_baseline(time, verdict):
    found = pairs(
        measured("base", 0.4, **FIRST), measured("one", 0.1, **SECOND), measured("two", time, **THIRD)
    )

    ratio = found["one", "two"].ratios[0]
    assert (round(ratio.value, 6), ratio.verdict, ratio.separate) == (round(time / 0.1, 6), verdict, True)
    # Both speed-ups are known to the 2.5 % by which sessions differ.
    assert 1.03 < ratio.value / ratio.low < 1.05
    assert found["one", "two"].overall.separate


def test_without_an_interval_of_both_there_is_a_ratio_and_no_verdict():
    cpu = {"device": EPYC, "ceilings": {}}
    found = pairs(
        measured("base", 0.4, ts=FIRST["ts"], **cpu),
        measured("one", 0.1, ts=SECOND["ts"], **cpu),
        measured("two", 0.2, ts=THIRD["ts"], **cpu),
    )["one", "two"]

    for ratio in (found.ratios[0], found.overall):
        assert (round(ratio.value, 9), ratio.low, ratio.verdict) == (2.0, None, Verdict.SEPARATE)


def test_over_all_workloads_it_is_the_geometric_mean_of_those_that_both_passed():
    found = pairs(measured("base", 0.4, 0.4, 0.4), measured("one", 0.1, 0.1, 0.1), measured("two", 0.2, 0.8))

    assert [ratio.value and round(ratio.value, 9) for ratio in found["one", "two"].ratios] == [2.0, 8.0, None]
    assert round(found["one", "two"].overall.value, 9) == 4.0
    assert found["one", "two"].overall.verdict is Verdict.FASTER


@pytest.mark.parametrize(("device", "verdict"), [(H200, Verdict.FASTER), (EPYC, Verdict.AMBIGUOUS)])
def test_on_a_cpu_a_verdict_needs_a_wider_interval_over_all_workloads_too(device, verdict):
    """Of processes whose ratios differ by 1 %: 0.025 are significant, on a CPU 0.040."""

    def uneven(name: str, *times: float) -> Source:
        records = [record(name, time, process=at, device=device) for at, time in enumerate(times)]
        return Source(records=records, front=FrontMatter(baseline=name == "base"))

    (pair,) = pairs(uneven("base", 0.1, 0.1, 0.1), uneven("slow", 0.102, 0.103, 0.104)).values()

    assert (pair.ratios[0].verdict, pair.overall.verdict) == (verdict, verdict)


def test_seen_from_the_other_side_ratio_interval_and_verdict_are_reversed():
    (pair,) = pairs(measured("base", 0.2), measured("fast", 0.1)).values()
    other = reversed_pair(pair)

    ratio, inverse = pair.ratios[0], other.ratios[0]
    assert (other.implementation, other.over) == (pair.over, pair.implementation)
    assert (inverse.value, inverse.low, inverse.high) == (1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    assert (ratio.verdict, inverse.verdict) == (Verdict.FASTER, Verdict.SLOWER)
    assert reversed_pair(other).overall.verdict is pair.overall.verdict
