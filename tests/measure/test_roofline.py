import pytest

from kernels_bench_tools.records.record import Regime, Work
from kernels_bench_tools.records.roofline import (
    CPU_MARGIN,
    Limits,
    RooflineResult,
    assess,
    traffic_peak,
)

# Roughly an H200's, GB/s and TFLOP/s.
PEAKS = {
    "read": 4400.0,
    "write": 4100.0,
    "copy": 4270.0,
    "triad": 4300.0,
    "matmul_bfloat16": 790.0,
    "matmul_float16": 780.0,
    "matmul_float32": 50.0,
    "matmul_tf32": 400.0,
}
L2 = 60 * 2**20
NULL_MS = 0.0015


def work(read: float, written: float, flops: float = 1) -> Work:
    return Work(bytes_read=int(read), bytes_written=int(written), flops=int(flops))


def judged(work: Work, ms: float, dtype: str = "bfloat16", **peaks: float) -> RooflineResult:
    return assess(work, ms, dtype, Limits(PEAKS | peaks, NULL_MS, L2))


def ms_at(work: Work, gb_per_s: float) -> float:
    return work.bytes_moved / gb_per_s / 1e6


@pytest.mark.parametrize(
    ("read", "written", "name", "value"),
    [
        (2e9, 0, "read", 4400),
        (0, 2e9, "write", 4100),
        (1e9, 1e9, "copy", 4270),
        (1.0001e9, 1e9, "copy", 4270),  # weights, read once
        (2e9, 1e9, "triad", 4300),
        (3e9, 1e9, "mix", 4324.6),
        (1e9, 3e9, "mix", 4183.3),
    ],
)
def test_the_peak_is_that_of_the_traffic_mix(read: float, written: float, name: str, value: float) -> None:
    assert traffic_peak(work(read, written), PEAKS) == (name, pytest.approx(value, rel=1e-4))


def test_a_mix_takes_the_time_of_its_parts() -> None:
    peaks = {"read": 200.0, "write": 100.0}

    # 1 GB read in 5 ms and 1 GB written in 10 ms: 2 GB in 15 ms.
    assert traffic_peak(work(1e9, 1e9), peaks) == ("mix", pytest.approx(2 / 0.015))


def test_without_peaks_there_is_a_regime_but_no_fraction() -> None:
    found = assess(work(1e9, 1e9), 0.5, "bfloat16", Limits({}, 0.0, 0))

    assert found == RooflineResult(Regime.HBM, None, "")


@pytest.mark.parametrize(
    ("size", "ms", "flops", "regime"),
    [
        (1e6, 4 * NULL_MS, 1, Regime.LAUNCH),
        (1e6, 4 * NULL_MS, 1e10, Regime.LAUNCH),
        (10e6, 0.01, 1, Regime.L2),
        (60e6, 0.05, 1, Regime.TRANSITION),
        (1e9, 0.5, 1, Regime.HBM),
        # 790 TFLOP/s over 4270 GB/s: 185 FLOPs per byte.
        (1e9, 1.0, 2e9 * 200, Regime.COMPUTE),
        (1e9, 1.0, 2e9 * 170, Regime.HBM),
    ],
)
def test_regimes(size: float, ms: float, flops: float, regime: Regime) -> None:
    assert judged(work(size, size, flops), ms).regime is regime


def test_a_launch_bound_call_has_no_roofline() -> None:
    assert judged(work(1e6, 1e6), 4 * NULL_MS).roofline is None


def test_the_fraction_is_the_achieved_rate_over_the_peaks() -> None:
    copied = work(1e9, 1e9)

    roofline = judged(copied, ms_at(copied, 0.9 * 4270)).roofline

    assert (roofline.ceiling, roofline.value) == ("copy", 4270.0)
    assert roofline.fraction == pytest.approx(0.9)


def test_arithmetic_is_compared_with_the_matmul_of_its_type() -> None:
    found = judged(work(1e8, 1e8, 700e9), 1.0).roofline

    assert (found.ceiling, found.value) == ("matmul_bfloat16", 790.0)
    assert found.fraction == pytest.approx(700 / 790)


def test_float32_above_its_peak_counts_as_tf32() -> None:
    slow, fast = (judged(work(1e8, 1e8, flops), 1.0, "float32").roofline for flops in (40e9, 300e9))

    assert (slow.ceiling, fast.ceiling) == ("matmul_float32", "matmul_tf32")
    assert fast.fraction == pytest.approx(300 / 400)


@pytest.mark.parametrize("size", [10e6, 30e6, 120e6, 300e6, 1e9])
def test_slightly_above_the_peak_is_possible(size: float) -> None:
    copied = work(size, size)

    assert judged(copied, ms_at(copied, 1.08 * 4270)).above == ""


def test_one_and_a_half_times_the_peak_is_above_the_roofline() -> None:
    copied = work(1e9, 1e9)

    above = judged(copied, ms_at(copied, 1.5 * 4270)).above

    assert "GB/s through memory" in above
    assert "4400 GB/s" in above


def test_bytes_that_fit_the_cache_are_not_traffic() -> None:
    # 240 MB, of which 63 MB need never have reached memory before the end of the call.
    copied = work(120e6, 120e6)

    assert judged(copied, ms_at(copied, 1.3 * 4400)).above == ""
    assert judged(copied, ms_at(copied, 1.6 * 4400)).above


def test_cache_rates_are_limited_too() -> None:
    small = work(20e6, 20e6)

    assert judged(small, ms_at(small, 2 * 4270)).above == ""
    assert "more than 8 times" in judged(small, ms_at(small, 10 * 4400)).above


def test_a_matmul_may_exceed_its_peak_by_boost_clocks_only() -> None:
    assert judged(work(1e8, 1e8, 950e9), 1.0).above == ""
    assert "1200 TFLOP/s in bfloat16" in judged(work(1e8, 1e8, 1200e9), 1.0).above
    assert judged(work(1e8, 1e8, 450e9), 1.0, "float32").above == ""


def test_a_cpus_matmul_peak_has_a_wider_margin() -> None:
    quick = work(1e8, 1e8, 1.5 * 790e9)
    limits = Limits(PEAKS, NULL_MS, L2)

    assert "TFLOP/s" in assess(quick, 1.0, "bfloat16", limits).above
    assert assess(quick, 1.0, "bfloat16", limits._replace(margin=CPU_MARGIN)).above == ""


def test_a_small_rate_is_printed_with_its_digits() -> None:
    reason = judged(
        work(1e3, 1e3, 3e8), 1.0, matmul_bfloat16=0.0123, matmul_float16=0.0, matmul_tf32=0.0
    ).above

    assert reason.startswith("0.3 TFLOP/s in bfloat16, where a matmul's measured peak is 0.0123")


def test_a_call_cannot_be_faster_than_an_empty_kernel() -> None:
    assert "empty kernel" in judged(work(1e3, 1e3), 0.4 * NULL_MS).above
    assert judged(work(1e3, 1e3), 0.8 * NULL_MS).above == ""
    assert judged(work(1e3, 1e3), 0.0).above == "takes no time"


def test_a_cpus_traffic_peak_has_a_wider_margin() -> None:
    copied = work(1e9, 1e9)
    ms = ms_at(copied, 1.3 * 4400)

    assert judged(copied, ms).above
    roomy = assess(copied, ms, "float32", Limits(PEAKS, 0, L2, CPU_MARGIN))
    assert roomy.above == ""


def test_a_type_without_a_matmul_peak_is_bound_by_memory() -> None:
    assert judged(work(1e9, 1e9, 1e15), 1.0, "float64").regime is Regime.HBM


def test_fp8_is_bounded_by_the_peak_of_fp8_products() -> None:
    product = work(2**26, 2**26, 2 * 8192**3)
    ms = product.flops / 1300e9  # impossible in bfloat16

    assert judged(product, ms).above
    found = judged(product, ms, "float8_e4m3fn", matmul_float8=1400.0)
    assert not found.above
    assert found.roofline.ceiling == "matmul_float8"
    assert not judged(product, ms, "float8_e4m3fn").above  # a device without a measured peak
