"""The self-check's pairs: their verdicts are the report's, and what is measured for them is independent."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from kernels_bench_tools.measure.timing.sampling import Call, summarize
from kernels_bench_tools.records.record import CacheState, Record, Timer
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.results.compare import compare
from kernels_bench_tools.selfcheck.cases import repeated_cases, slowed_case
from kernels_bench_tools.selfcheck.processes import (
    HOW,
    PER_SIDE,
    Pair,
    ProcessSeries,
    check_same,
    check_slowdown,
    pairs_of_processes,
    thinned,
    verdict,
)
from kernels_bench_tools.stats import Groups


def pair(candidate: float, baseline: float, noise: float = 0.01, seed: int = 0) -> Pair:
    """Return three groups of samples a side, in microseconds, around these medians."""
    source = np.random.default_rng(seed)
    ours, theirs = (
        [(us * source.normal(1, noise, 40)).tolist() for _ in range(PER_SIDE)] for us in (candidate, baseline)
    )
    return Pair("a", ours, theirs)


def series(us: float, between: float = 0.002, processes: int = 10, seed: int = 0) -> list[ProcessSeries]:
    """Return what processes find that differ by ``between`` (a standard deviation) for as long as they live."""
    source = np.random.default_rng(seed)
    return [
        ProcessSeries(median_us, (median_us * source.normal(1, 0.001, 30)).tolist())
        for median_us in us * source.normal(1, between, processes)
    ]


def record(samples_us: Sequence[float], process: int, name: str) -> Record:
    """Return the record that a process leaves which found these samples."""
    calls = [Call(us / 1e3) for us in samples_us]
    latency = summarize(
        calls,
        timer=Timer.CUPTI,
        cache=CacheState.READ_FLUSH,
        input_sets=3,
        warmup=1,
        stop_reason="converged",
    )
    return Record(
        ts="", run=name, op="neg", impl=name, wl={"name": "w"}, ok=True, lat_ms=latency, process=process
    )


def test_slower_and_faster_get_a_verdict_and_same_none() -> None:
    assert verdict(pair(102, 100), "cuda") == 1
    assert verdict(pair(98, 100), "cuda") == -1
    assert verdict(pair(100, 100), "cuda") == 0


def test_a_difference_below_half_a_percent_gets_no_verdict() -> None:
    assert verdict(pair(100.45, 100, 1e-5), "cuda") == 0
    assert verdict(pair(100.55, 100, 1e-5), "cuda") == 1


def test_a_difference_below_the_timer_s_tick_gets_no_verdict() -> None:
    assert verdict(pair(2.03, 2.0, 1e-5), "cuda") == 0
    assert verdict(pair(2.03, 2.0, 1e-5), "cpu") == 1


@pytest.mark.parametrize("us", [2.0, 12.0, 100.0])
def test_verdicts_agree_with_the_report(us: float) -> None:
    numbers = {Verdict.SLOWER: 1, Verdict.FASTER: -1, Verdict.SAME: 0, Verdict.AMBIGUOUS: 0}
    seen = set()
    for seed, factor in enumerate((0.95, 0.98, 0.99, 0.995, 1.0, 1.004, 1.006, 1.01, 1.02, 1.05) * 5):
        one = pair(us * factor, us, 0.004, seed)
        ours, theirs = (
            [record(group, process, name) for process, group in enumerate(groups)]
            for name, groups in (("ours", one.candidate), ("theirs", one.baseline))
        )
        report_says = numbers[compare(ours, theirs).verdict]
        assert verdict(one, "cuda") == report_says, (seed, factor)
        seen.add(report_says)

    assert seen == {-1, 0, 1}


def test_false_verdicts_are_rare_despite_variation_between_processes() -> None:
    found = {str(number): series(10 * 2**number, 0.003, seed=number) for number in range(7)}

    check = check_same(pairs_of_processes(found, [(name, name) for name in found], 50), "cuda")

    assert check.passed, check
    assert check.expected == "at most 2 false verdicts in 50 pairs"


def test_false_verdicts_fail_and_are_named() -> None:
    different = [Pair(f"case {number % 2}", *two) for number in range(20) for two in [sides(102, 100)]]
    same = [Pair("fine", *sides(100, 100)) for _ in range(20)]

    check = check_same(different[:3] + same, "cuda")

    assert not check.passed
    assert check.found == "3 of 23, over 3 calls"
    assert check.detail == f"{HOW} False: case 0 (2), case 1 (1)."


def sides(candidate: float, baseline: float) -> tuple[Groups, Groups]:
    one = pair(candidate, baseline, 0.001)
    return one.candidate, one.baseline


@pytest.mark.parametrize(("percent", "passed"), [(2, True), (0.2, False)])
def test_a_slowdown_of_two_percent_is_detected(percent: float, passed: bool) -> None:
    found = {"plain": series(100), "slow": series(100 + percent, seed=1)}

    check = check_slowdown(pairs_of_processes(found, [("slow", "plain")], 50), "cuda", 2, 0.95)

    assert check.passed is passed, check


def test_pairs_use_distinct_processes_and_all_cases() -> None:
    found = {name: [ProcessSeries(1.0, [process + 1.0]) for process in range(10)] for name in "abc"}

    pairs = pairs_of_processes(found, [(name, name) for name in found], 50)

    for one in pairs:
        assert len({group[0] for group in [*one.candidate, *one.baseline]}) == 2 * PER_SIDE
    assert sorted(Counter(one.name for one in pairs).values()) == [16, 17, 17]
    assert len({str(one) for one in pairs}) > 45


def test_samples_are_thinned_evenly_and_in_order() -> None:
    assert thinned(list(range(120))) == list(range(0, 120, 4))
    assert thinned([3.0, 1.0, 2.0]) == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_known_slowdowns_are_timed_in_several_processes(device: str) -> None:
    cases = {case.name: case for case in repeated_cases(device, quick=False)}
    plain = slowed_case(device).shapes[0][0]

    assert len(cases) == len(repeated_cases(device, quick=False))
    for percent in (1, 2, 5):
        slow = cases[slowed_case(device, percent).name].shapes[0][0]
        assert slow / plain == pytest.approx(1 + percent / 100, rel=1e-4)
