import numpy as np
import pytest

from kernels_bench_tools.statistics import geometric_mean, interval_ranks, median_interval, quantiles


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
def test_the_ranks_are_the_published_ones(n: int, ranks: tuple[int, int]) -> None:
    assert interval_ranks(n) == ranks


@pytest.mark.parametrize("n", [0, 1, 5])
def test_too_few_samples_have_no_interval(n: int) -> None:
    assert median_interval([1.0] * n) is None


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    draws = generator.lognormal(size=(4000, 31))

    hits = 0
    for samples in draws:
        interval = median_interval(samples.tolist())
        assert interval is not None
        hits += interval[0] <= 1.0 <= interval[1]

    # 97.1 % is what the ranks for n=31 give exactly; 4000 draws scatter by about 0.3 %.
    assert 0.95 <= hits / len(draws) <= 0.985


def test_the_order_of_the_samples_does_not_matter() -> None:
    assert median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)


def test_quantiles_interpolate() -> None:
    assert quantiles([0.0, 1.0], (0.1, 0.5)) == pytest.approx((0.1, 0.5))


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [-1.0]])
def test_a_geometric_mean_needs_positive_ratios(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        geometric_mean(ratios)
