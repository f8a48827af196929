import numpy as np
import pytest

from kernels_bench_tools.estimate import Estimate, geometric_mean, geometric_mean_interval
from kernels_bench_tools.stats import (
    drift,
    hierarchical_median,
    interval_ranks,
    is_bimodal,
    median,
    ratio_interval,
    student,
    tail_ratio,
)


@pytest.mark.parametrize(
    ("n", "ranks"),
    # Conover, Practical Nonparametric Statistics: order statistics around the median at 95 %.
    [
        (6, (1, 6)),
        (10, (2, 9)),
        (20, (6, 15)),
        (30, (10, 21)),
        (50, (18, 33)),
        (100, (40, 61)),
        (400, (180, 221)),
    ],
)
def test_interval_ranks_are_the_published_ones(n: int, ranks: tuple[int, int]) -> None:
    assert interval_ranks(n) == ranks


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [-1.0]])
def test_a_geometric_mean_needs_positive_ratios(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        geometric_mean(ratios)


def processes(
    generator: np.random.Generator, count: int, *, middle: float = 1.0, between: float, within: float
) -> list[list[float]]:
    """Return 30 samples for each of ``count`` processes, whose medians scatter."""
    effects = generator.normal(0, between, (count, 1))
    return (middle * np.exp(effects + generator.normal(0, within, (count, 30)))).tolist()


# One process cannot know how others differ.
@pytest.mark.parametrize(
    ("count", "between", "within"),
    [(1, 0.0, 0.01), *((count, 0.003, within) for count in (2, 3, 10) for within in (0.001, 0.01))],
)
def test_the_interval_across_processes_covers_the_true_value(
    count: int, between: float, within: float
) -> None:
    generator = np.random.default_rng(count)

    hits = 0
    for _ in range(1000):
        found = hierarchical_median(processes(generator, count, between=between, within=within))
        hits += found.low <= 1.0 <= found.high

    # A thousand draws at 95 % scatter by 0.7 %.
    assert hits >= 930


@pytest.mark.parametrize("counts", [(3, 3), (3, 5), (1, 1)])
def test_the_interval_of_a_ratio_covers_the_true_value_with_its_confidence(counts: tuple[int, int]) -> None:
    generator = np.random.default_rng(sum(counts))
    between = 0.0 if min(counts) == 1 else 0.003

    hits = 0
    for _ in range(1000):
        base, ours = (
            processes(generator, count, middle=middle, between=between, within=0.01)
            for count, middle in zip(counts, (2.0, 1.0), strict=True)
        )
        found = ratio_interval(base, ours)
        hits += found.low <= 2.0 <= found.high

    assert hits >= 930


def test_the_interval_is_at_least_as_wide_as_the_variation_inside_of_processes() -> None:
    uneven, even = [[0.9] * 5 + [1.0] + [1.3] * 5] * 3, [[1.0] * 11] * 3

    # Of equal medians, whose own interval has no width.
    low, high = 0.9 ** (1 / 3**0.5), 1.3 ** (1 / 3**0.5)
    assert hierarchical_median(uneven) == pytest.approx((1.0, low, high))
    assert ratio_interval(uneven, even) == pytest.approx((1.0, low, high))
    assert ratio_interval(even, uneven) == pytest.approx((1.0, 1 / high, 1 / low))


def test_three_processes_suffice_to_detect_two_percent() -> None:
    generator = np.random.default_rng(0)

    found = 0
    for _ in range(400):
        base, slower = (
            processes(generator, 3, middle=middle, between=0.002, within=0.002) for middle in (1.0, 1.02)
        )
        found += ratio_interval(base, slower).high < 1

    assert found >= 0.95 * 400


def test_an_interval_is_known_if_both_ends_are() -> None:
    assert Estimate.of(1.0, 0.9, 1.1).ends == (0.9, 1.1)
    assert Estimate.of(1.0, 0.9, None).ends == Estimate.of(1.0, None, 1.1).ends == (None, None)


def test_five_samples_have_no_interval() -> None:
    found = hierarchical_median([[1.0] * 5])

    assert not found.known
    assert not ratio_interval([[1.0] * 5], [[2.0] * 30]).known
    assert not geometric_mean_interval([ratio_interval([[1.0] * 5], [[2.0] * 30])]).known


@pytest.mark.parametrize("groups", [[], [[]], [[1.0], []], [[1.0, 0.0], [1.0]]])
def test_an_interval_across_processes_needs_positive_samples_of_each(groups: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="positive samples"):
        hierarchical_median(groups)


def test_the_mean_over_workloads_covers_the_true_value_if_slow_processes_are_slow_on_all() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(500):
        # Each process has an effect that all its four workloads share.
        effects = np.exp(generator.normal(0, 0.003, 3))
        workloads = np.exp(generator.normal(0, 0.0005, (3, 4))) * effects[:, None] * 2.0
        ratios = [ratio_interval([[x] * 6 for x in row], [[1.0] * 6] * 3) for row in workloads.T.tolist()]
        found = geometric_mean_interval(ratios)
        by_process = hierarchical_median([[geometric_mean(process)] for process in workloads.tolist()])
        assert found.low <= by_process.low < by_process.high <= found.high
        hits += found.low <= 2.0 <= found.high

    assert hits > 0.93 * 500


@pytest.mark.parametrize(
    ("freedom", "factor"), [(1, 12.706), (2, 4.303), (9, 2.262), (11, 2.201), (20, 2.086), (100, 1.984)]
)
def test_students_quantiles_are_the_published_ones(freedom: int, factor: float) -> None:
    assert student(freedom) == pytest.approx(factor, rel=1e-3)


def test_drift_compares_the_last_third_with_the_first() -> None:
    assert drift([1.0] * 10 + [5.0] * 10 + [1.1] * 10) == pytest.approx(0.1)
    assert drift([1.0] * 8) is None


def test_the_tail_is_the_99th_percentile() -> None:
    assert tail_ratio([1.0] * 98 + [2.0] * 2) == pytest.approx(2.0)
    assert tail_ratio([1.0] * 19) is None


def test_an_alternating_kernel_is_bimodal() -> None:
    generator = np.random.default_rng(0)
    samples = np.where(np.arange(60) % 2, 1.0, 1.06) * np.exp(generator.normal(0, 0.003, 60))

    assert is_bimodal(samples.tolist())
    assert is_bimodal([1.0, 1.2] * 15)


def test_outliers_and_noise_are_not_bimodal() -> None:
    generator = np.random.default_rng(0)
    steady = np.exp(generator.normal(0, 0.002, 60)).tolist()
    noisy = generator.normal(0, 0.08, (200, 30))

    assert not is_bimodal([*steady, 3.0, 3.0, 3.1])
    assert not is_bimodal(steady)
    assert not is_bimodal([1.0] * 30)
    assert not is_bimodal([1.0, 2.0])
    assert sum(is_bimodal(np.exp(row).tolist()) for row in noisy) <= 4


def test_one_sample_does_not_change_the_grouped_median_by_a_tick() -> None:
    generator = np.random.default_rng(0)
    true = generator.normal(10.03, 0.02, 4001)
    seen = np.rint(true / 0.032) * 0.032

    # The plain median only knows the nearest tick, 10.016.
    assert abs(median(seen.tolist(), 0.032) - 10.03) < 0.002
    assert abs(median(seen.tolist()) - 10.03) > 0.01
