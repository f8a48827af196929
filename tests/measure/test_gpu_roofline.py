"""Ceilings and sentinels on a CUDA device; skipped where there is none."""

from typing import Any

import pytest
import torch

from kernels_bench_tools.measure.device.peaks import measure_peaks, median_ms
from kernels_bench_tools.measure.device.sentinels import measure_sentinels
from kernels_bench_tools.records.record import Regime, Work
from kernels_bench_tools.records.roofline import Limits, RooflineResult, assess

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    return measure_peaks("cuda")


@pytest.fixture(scope="module")
def sentinels() -> dict[str, float]:
    return measure_sentinels("cuda")


def test_traffic_peaks_are_near_one_another(peaks: dict[str, float]) -> None:
    traffic = [peaks[name] for name in ("read", "write", "copy", "triad")]

    assert min(traffic) > 100
    assert max(traffic) < 1.5 * min(traffic)
    assert max(traffic) < 10_000


def test_peaks_repeat_within_three_percent_and_matmuls_within_ten(peaks: dict[str, float]) -> None:
    again = measure_peaks("cuda")

    assert set(again) == set(peaks)
    ratios = {name: again[name] / peaks[name] for name in peaks}
    # A GPU that was just busy slows large matmuls down for power, but not memory.
    matmuls = {name for name in ratios if name.startswith("matmul")}
    assert all(abs(ratios[name] - 1) < 0.1 for name in matmuls), ratios
    assert all(abs(ratios[name] - 1) < 0.03 for name in ratios.keys() - matmuls), ratios


def test_sentinels_repeat_within_two_percent(sentinels: dict[str, float]) -> None:
    again = measure_sentinels("cuda")

    for name in ("copy", "matmul"):
        assert again[name] == pytest.approx(sentinels[name], rel=0.02)
    assert sentinels["null"] < 0.01
    assert again["null"] == pytest.approx(sentinels["null"], abs=0.001)


def roofline_of(call: Any, size: int, peaks: dict[str, float], sentinels: dict[str, float]) -> RooflineResult:
    l2 = torch.cuda.get_device_properties("cuda").L2_cache_size
    work = Work(bytes_read=size, bytes_written=size, flops=1)
    return assess(work, median_ms(call, "cuda"), "bfloat16", Limits(peaks, sentinels["null"], l2))


@pytest.mark.parametrize("size", [4, 2**20, 2**24, 2**26, 2**28, 2**29])
def test_no_size_of_copy_is_above_the_roofline_and_a_large_one_reaches_the_peak(
    peaks: dict[str, float], sentinels: dict[str, float], size: int
) -> None:
    x = torch.ones(size, device="cuda", dtype=torch.uint8)
    y = torch.empty_like(x)

    found = roofline_of(lambda: torch.bitwise_not(x, out=y), size, peaks, sentinels)

    assert found.above == ""
    if size == 4:
        assert found.regime is Regime.LAUNCH
    if size == 2**29:
        assert found.regime is Regime.HBM
        assert found.roofline.ceiling == "copy"
        assert 0.9 < found.roofline.fraction < 1.1
