import time

import pytest

from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.session import BenchmarkSession, open_session
from kernels_bench_tools.records.record import Work
from kernels_bench_tools.records.roofline import peaks_for

pytestmark = pytest.mark.usefixtures("small_buffers")


def test_a_too_low_peak_is_measured_again() -> None:
    session = BenchmarkSession(device="cpu", clocks=ClockSampler(""), peaks={"copy": 1e-6})
    half = 10**9 // 2

    # 1 GB in 10 s, which the slowest of memories can do.
    found = session.assess(Work(bytes_read=half, bytes_written=half, flops=0), 10_000.0, "float32")

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
