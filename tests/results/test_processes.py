import msgspec
import numpy as np
import pytest
from made_records import record

from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import (
    Flag,
    Latency,
    Roofline,
    Status,
)
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.processes import by_workload, merge, samples
from kernels_bench_tools.results.speedup import speedup_over
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.stats import hierarchical_median, ratio_interval, verdict_of

BASELINE = FrontMatter(title="Base", baseline=True)


def processes(impl, medians, *, spread=0.002, samples=30, seed=0, **fields):
    """Make the records of one workload, one for each median given."""
    generator = np.random.default_rng(seed)
    made = []
    for number, p50 in enumerate(medians):
        one = record(impl, p50, process=number, run=f"r{number}", **fields)
        times = p50 * np.exp(generator.normal(0, spread, samples))
        one.lat_ms.raw_times = (times * p50 / np.median(times)).tolist()
        one.lat_ms.reps = samples
        made.append(one)
    return made


def summary_of(**implementations):
    sources = [
        Source(records=records, front=BASELINE if name == "base" else None)
        for name, records in implementations.items()
    ]
    return summarize("op", "Op", sources).devices[0]


def row_of(device, name):
    return next(row for row in device.rows if row.implementation == name)


def test_processes_of_a_workload_become_one_point():
    device = summary_of(base=processes("base", [0.100, 0.103, 0.101]))

    (point,) = row_of(device, "base").points
    assert point.processes == 3
    assert point.reps == 90
    assert point.p50_ms == pytest.approx(0.101)
    assert row_of(device, "base").total == 1


def test_the_interval_covers_how_processes_differ():
    apart = row_of(summary_of(a=processes("a", [0.099, 0.100, 0.101])), "a").points[0]
    alike = row_of(summary_of(a=processes("a", [0.1, 0.1, 0.1])), "a").points[0]

    assert apart.ci_low_ms < 0.099
    assert apart.ci_high_ms > 0.101
    assert 0.0995 < alike.ci_low_ms < alike.ci_high_ms < 0.1005


def test_the_later_record_of_a_process_counts():
    old = processes("a", [0.3, 0.3], ts="2026-01-01")
    new = processes("a", [0.1, 0.1], ts="2026-01-02")

    (found, whole) = by_workload([*new, *old])

    assert whole is None
    assert [[record.lat_ms.p50 for record in records] for records in found.values()] == [[0.1, 0.1]]


def test_the_verdict_comes_from_the_interval_across_processes():
    base = processes("base", [0.1000, 0.1003, 0.0998])
    ours = processes("ours", [0.0981, 0.0982, 0.0980])
    # Narrow intervals within the processes, which hold nothing of how they differ.
    noisy = processes("noisy", [0.0981, 0.1030, 0.0910], spread=0.0001)

    sure, unsure = speedup_over(ours, base), speedup_over(noisy, base)

    assert (sure.verdict, unsure.verdict) == (Verdict.FASTER, Verdict.AMBIGUOUS)
    assert 1.0 < sure.low < sure.value < sure.high
    assert unsure.low < 1.0 < unsure.high


def test_processes_that_ran_side_by_side_are_paired():
    base = processes("base", [0.100, 0.104, 0.108])
    ours = processes("ours", [0.098, 0.102, 0.106])
    unpaired = [msgspec.structs.replace(record, process=record.process + 1) for record in ours]

    assert speedup_over(ours, base).verdict is Verdict.FASTER
    assert speedup_over(unpaired, base).verdict is Verdict.AMBIGUOUS


INCORRECT = {"p50": 0.1, "status": Status.INCORRECT, "corr": {"reason": "3 NaN"}}
NOTHING = {"status": Status.INVALID, "reason": "wrote no op.jsonl", "wl": {}}


@pytest.mark.parametrize(
    ("good", "bad", "status", "reason"),
    [
        (2, [INCORRECT], Status.INCORRECT, "3 NaN (process 3 of 3)"),
        (1, [INCORRECT] * 2, Status.INCORRECT, "3 NaN (processes 2 and 3 of 3)"),
        (2, [NOTHING], Status.INVALID, "wrote no op.jsonl (process 3 of 3)"),
    ],
)
def test_a_process_that_failed_or_measured_nothing_removes_the_rank(good, bad, status, reason):
    failed = [record("a", process=good + number, **fields) for number, fields in enumerate(bad)]
    records = [*processes("a", [0.1] * good), *failed]
    row = row_of(summary_of(base=processes("base", [0.2] * 3), a=records), "a")

    (point,) = row.points
    assert (point.status, point.reason) == (status, reason)
    assert (row.rank, row.passed, point.speedup, point.gb_per_s) == (None, 0, None, None)
    assert (point.p50_ms is not None) == status.ran


@pytest.mark.parametrize(("ts", "count"), [("2026-01-01", 2), ("2026-01-03", 3)])
def test_an_earlier_failure_without_a_workload_does_not_count(ts, count):
    failed = record("a", None, status=Status.ERROR, process=2, wl={}, ts=ts)
    measured = processes("a", [0.1, 0.1], ts="2026-01-02")

    (of_workload,) = by_workload([failed, *measured])[0].values()

    assert len(of_workload) == count


def test_of_processes_the_middle_one_of_those_with_the_most_frequent_peak_is_shown():
    ceilings = (("copy", 0.7), ("read", 0.9), ("copy", 0.5), ("copy", 0.6))
    records = processes("a", [0.1] * 4)
    for one, (name, fraction) in zip(records, ceilings, strict=True):
        one.roofline = Roofline(ceiling=name, value=4300.0, fraction=fraction)

    assert merge(records).roofline == records[3].roofline


def test_refused_edge_cases_of_any_process_are_a_limitation():
    records = processes("a", [0.1, 0.1])
    for one, name in zip(records, ("shape 3x5", "column-major"), strict=True):
        one.corr = {"refused": [name], "refusal": "ValueError: a multiple of 8"}
    odd = processes("b", [0.1])
    odd[0].corr = {"refused": "all", "refusal": 3}

    device = summary_of(a=records, b=odd)

    (point,) = row_of(device, "a").points
    assert point.limitation == "refuses shape 3x5, column-major (ValueError: a multiple of 8)"
    assert row_of(device, "b").points[0].limitation == ""


@pytest.mark.parametrize("status", [Status.REJECTED, Status.EXCEEDS_PHYSICS])
def test_a_time_that_cannot_be_trusted_is_shown_and_never_ranked(status):
    flags = [Flag.NEAR_FLOOR, Flag.STREAM_ESCAPE] if status is Status.REJECTED else []
    told = "" if flags else "9000 GB/s through memory"
    bad = record("fast", 0.001, status=status, flags=flags, reason=told)

    device = summary_of(base=processes("base", [0.1]), fast=[bad])

    row = row_of(device, "fast")
    assert (row.rank, row.speedup, row.passed) == (None, None, 0)
    assert row.points[0].p50_ms == 0.001
    assert row.reason == (told or f"work outside the call: {Flag.STREAM_ESCAPE.meaning}")
    assert [other.implementation for other in device.rows] == ["base", "fast"]


def test_thinned_samples_have_the_same_interval():
    generator = np.random.default_rng(0)
    times = np.exp(generator.normal(0, 0.05, 960))
    p50 = float(np.median(times))

    def latency(kept):
        return Latency(p10=1, p50=p50, p90=1, mean=1, iqr=1, raw_times=kept, reps=960)

    full, thin = (
        hierarchical_median([samples(latency(kept))]) for kept in (times.tolist(), times[::32].tolist())
    )

    assert thin.value == pytest.approx(full.value)
    assert thin.high - thin.low == pytest.approx(full.high - full.low, rel=0.6)
    as_they_are = hierarchical_median([times[::32].tolist()])
    assert as_they_are.high - as_they_are.low > 3 * (full.high - full.low)


def test_a_difference_of_one_clock_tick_is_ambiguous():
    """Kernels of 2 us, of which every sample of every process showed the same tick."""
    base, ours = (processes(name, [p50] * 3, spread=0.0) for name, p50 in (("a", 2.016e-3), ("b", 1.984e-3)))
    slower = processes("c", [2.112e-3] * 3, spread=0.0)

    assert speedup_over(ours, base).verdict is Verdict.AMBIGUOUS
    assert speedup_over(slower, ours).verdict is Verdict.SLOWER
    (point,) = row_of(summary_of(b=ours), "b").points
    assert point.ci_low_ms == pytest.approx(1.968e-3)
    assert point.ci_high_ms == pytest.approx(2.0e-3)


SCATTER = {
    "normal": lambda rng: rng.normal(0, 0.02, (2, 3)),
    "heavy tails": lambda rng: 0.01 * rng.standard_t(2, (2, 3)),
    "two speeds": lambda rng: 0.1 * rng.integers(0, 2, (2, 3)),
    # In the order A B, B A, A B on a machine that becomes slower.
    "drift": lambda rng: 0.01 * np.array([[0, 3, 4], [1, 2, 5]]) + rng.normal(0, 0.005, (2, 3)),
}


@pytest.mark.parametrize("scatter", SCATTER)
def test_at_most_one_in_twenty_verdicts_between_copies_on_a_cpu_is_false(scatter):
    rng, pairs = np.random.default_rng(0), 1000

    def false_verdict() -> bool:
        medians = SCATTER[scatter](rng)
        groups = [[np.exp(one + rng.normal(0, 0.01, 30)).tolist() for one in side] for side in medians]
        return verdict_of(ratio_interval(*groups), on_cpu=True) in {Verdict.FASTER, Verdict.SLOWER}

    # With a margin of three standard deviations, 0.7 %.
    assert sum(false_verdict() for _ in range(pairs)) <= 0.043 * pairs
