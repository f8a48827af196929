import time

import pytest

from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.session import BenchmarkSession, open_session
from kernels_bench_tools.records.record import Work
from kernels_bench_tools.records.roofline import peaks_for

pytestmark = pytest.mark.usefixtures("small_buffers")

GIGABYTE = 10**9


def a_session(**peaks: float) -> BenchmarkSession:
    return BenchmarkSession(device="cpu", clocks=ClockSampler(""), peaks=peaks)


def copying(size: int) -> Work:
    return Work(bytes_read=size, bytes_written=size, flops=0)


def test_a_time_that_no_memory_can_reach_is_above_the_roofline() -> None:
    found = a_session(copy=10.0).assess(copying(100 * GIGABYTE), 1.0, "float32")

    assert "GB/s" in found.above
    assert a_session().assess(copying(100 * GIGABYTE), 1.0, "float32").above == ""


def test_a_too_low_peak_is_measured_again() -> None:
    session = a_session(copy=1e-6)

    # 1 GB in 10 s, which the slowest of memories can do.
    found = session.assess(copying(GIGABYTE // 2), 10_000.0, "float32")

    assert found.above == ""
    assert session.peaks["copy"] > 0.1


def test_a_cpu_has_peaks_if_asked_and_no_sentinels() -> None:
    with open_session("cpu") as session:
        assert session.peaks == {}
        session.measure_peaks(peaks_for({"float32"}))
        session.close()

        assert session.peaks["copy"] > 0
        assert session.sentinels == {}
        assert session.clocks.samples(0, time.monotonic()) == []
