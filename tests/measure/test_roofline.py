import pytest

from kernels_bench_tools.records.record import Regime, Work
from kernels_bench_tools.records.roofline import CPU_MARGIN, Limits, RooflineResult, assess, traffic_peak

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


def copying(size: float) -> Work:
    return work(size, size)


def computing(tflops: float) -> Work:
    """Return the work of a matmul that takes a millisecond at this rate."""
    return work(1e8, 1e8, tflops * 1e9)


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
        (2e9, 1e9, "triad", 4300),
        (1e9, 3e9, "mix", 4183.3),
    ],
)
def test_the_peak_is_that_of_the_traffic_mix(read: float, written: float, name: str, value: float) -> None:
    assert traffic_peak(work(read, written), PEAKS) == (name, pytest.approx(value, rel=1e-4))


def test_without_peaks_there_is_a_regime_but_no_fraction() -> None:
    found = assess(copying(1e9), 0.5, "bfloat16", Limits({}, 0.0, 0))

    assert found == RooflineResult(Regime.HBM, None, "")


@pytest.mark.parametrize(
    ("size", "ms", "flops", "dtype", "regime"),
    [
        (1e6, 4 * NULL_MS, 1, "bfloat16", Regime.LAUNCH),
        (10e6, 5 * NULL_MS, 1, "bfloat16", Regime.L2),
        (60e6, 0.05, 1, "bfloat16", Regime.TRANSITION),
        (1e9, 0.5, 1, "bfloat16", Regime.HBM),
        # 790 TFLOP/s over 4270 GB/s: 185 FLOPs per byte.
        (1e9, 1.0, 2e9 * 200, "bfloat16", Regime.COMPUTE),
        (1e9, 1.0, 2e9 * 170, "bfloat16", Regime.HBM),
        (1e9, 1.0, 1e15, "float64", Regime.HBM),  # without a matmul peak
    ],
)
def test_regimes(size: float, ms: float, flops: float, dtype: str, regime: Regime) -> None:
    found = judged(work(size, size, flops), ms, dtype)

    assert found.regime is regime
    assert (found.roofline is None) == (regime is Regime.LAUNCH)


@pytest.mark.parametrize(
    ("done", "ms", "dtype", "ceiling", "fraction"),
    [
        (copying(1e9), ms_at(copying(1e9), 0.9 * 4270), "bfloat16", "copy", 0.9),
        (computing(700), 1.0, "bfloat16", "matmul_bfloat16", 700 / 790),
        (computing(40), 1.0, "float32", "matmul_float32", 40 / 50),
        (computing(300), 1.0, "float32", "matmul_tf32", 300 / 400),  # above its peak it counts as TF32
    ],
)
def test_the_fraction_is_the_achieved_rate_over_the_peak(
    done: Work, ms: float, dtype: str, ceiling: str, fraction: float
) -> None:
    roofline = judged(done, ms, dtype).roofline

    assert (roofline.ceiling, roofline.value) == (ceiling, PEAKS[ceiling])
    assert roofline.fraction == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("done", "ms", "dtype", "reason"),
    [
        *((copying(size), ms_at(copying(size), 1.08 * 4270), "", "") for size in (10e6, 30e6, 120e6, 1e9)),
        (copying(1e9), ms_at(copying(1e9), 1.5 * 4270), "", "4400 GB/s"),
        # 240 MB, of which 63 MB need never have reached memory before the end of the call.
        (copying(120e6), ms_at(copying(120e6), 1.3 * 4400), "", ""),
        (copying(20e6), ms_at(copying(20e6), 10 * 4400), "", "more than 8 times"),
        (computing(950), 1.0, "", ""),  # boost clocks
        (computing(1200), 1.0, "", "1200 TFLOP/s in bfloat16"),
        (computing(450), 1.0, "float32", ""),
        (copying(1e3), 0.4 * NULL_MS, "", "empty kernel"),
        (copying(1e3), 0.0, "", "its time is zero"),
    ],
)
def test_what_no_device_can_do_is_above_the_roofline(done: Work, ms: float, dtype: str, reason: str) -> None:
    above = judged(done, ms, dtype or "bfloat16").above

    assert reason in above
    assert bool(above) == bool(reason)


@pytest.mark.parametrize(
    ("done", "ms"), [(copying(1e9), ms_at(copying(1e9), 1.3 * 4400)), (computing(1.5 * 790), 1.0)]
)
def test_a_cpus_peaks_have_a_wider_margin(done: Work, ms: float) -> None:
    assert judged(done, ms).above
    assert not assess(done, ms, "bfloat16", Limits(PEAKS, NULL_MS, L2, CPU_MARGIN)).above


def test_fp8_is_bounded_by_the_peak_of_fp8_products() -> None:
    product = work(2**26, 2**26, 2 * 8192**3)
    ms = product.flops / 1300e9  # impossible in bfloat16

    assert judged(product, ms).above
    found = judged(product, ms, "float8_e4m3fn", matmul_float8=1400.0)
    assert not found.above
    assert found.roofline.ceiling == "matmul_float8"
    assert not judged(product, ms, "float8_e4m3fn").above  # a device without a measured peak
