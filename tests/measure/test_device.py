from time import monotonic, process_time

import pytest
import torch

from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.device.environment import describe_environment, gpu_uuid
from kernels_bench_tools.measure.device.peaks import cpu_buffer_bytes, host_ms, measure_peaks
from kernels_bench_tools.measure.session import BenchmarkSession, open_session
from kernels_bench_tools.measure.timing.caches import (
    MAX_INPUT_SETS,
    cache_bytes,
    free_bytes,
    input_set_count,
    last_level_cache_bytes,
)
from kernels_bench_tools.records.device import cpu_device
from kernels_bench_tools.records.record import Work
from kernels_bench_tools.records.roofline import peaks_for


def test_a_cpu_has_no_gpu_s_properties() -> None:
    environment = describe_environment("cpu")

    assert environment.gpu == environment.driver == environment.sm == gpu_uuid("cpu") == ""
    assert environment.sm_clock_mhz == 0
    assert environment.cpu == cpu_device().name


def test_a_cpu_has_peaks_of_four_mixes_and_one_matmul() -> None:
    precision, start = torch.get_float32_matmul_precision(), process_time()

    peaks = measure_peaks("cpu")

    assert process_time() - start < 10  # usually half a second
    assert torch.is_grad_enabled()
    assert torch.get_float32_matmul_precision() == precision
    # Between an old laptop and a large server, whatever else runs: GB/s and TFLOP/s.
    assert 0.002 < peaks.pop("matmul_float32") < 50
    assert set(peaks) == {"read", "write", "copy", "triad"}
    assert all(0.5 < value < 2000 for value in peaks.values())


def test_a_plain_copy_is_not_faster_than_the_copy_peak() -> None:
    size = cpu_buffer_bytes()
    source = torch.ones(size // 4)
    target = torch.ones(size // 4)

    def beats() -> bool:
        ms = min(host_ms(lambda: target.copy_(source), 5))
        return 2 * size / ms / 1e6 > 1.5 * measure_peaks("cpu")["copy"]

    # A busy machine may slow one of the two down; a wrong count of bytes would be there each time.
    assert not all(beats() for _ in range(5))


def test_the_buffers_exceed_the_cache() -> None:
    assert 2**20 <= cache_bytes("cpu") <= 2**32
    assert free_bytes("cpu") > 0
    assert 3 * cpu_buffer_bytes() > 2 * min(last_level_cache_bytes(), 2**28)


def test_input_sets_are_bounded_in_number_and_size() -> None:
    assert input_set_count(1, "cpu") == MAX_INPUT_SETS
    assert input_set_count(2**40, "cpu") == 1
    assert input_set_count(1, "cpu", 2**40) == 1  # a call reads one row of a table


@pytest.mark.usefixtures("small_buffers")
def test_a_too_low_peak_is_measured_again() -> None:
    session = BenchmarkSession(device="cpu", clocks=ClockSampler(""), peaks={"copy": 1e-6})
    half = 10**9 // 2

    # 1 GB in 10 s, which the slowest of memories can do.
    found = session.assess(Work(bytes_read=half, bytes_written=half, flops=0), 10_000.0, "float32")

    assert found.above == ""
    assert session.peaks["copy"] > 0.1


@pytest.mark.usefixtures("small_buffers")
def test_a_session_on_a_cpu_has_peaks_if_asked_and_no_sentinels() -> None:
    with open_session("cpu") as session:
        assert session.peaks == {}
        session.measure_peaks(peaks_for({"float32"}))
        session.close()

        assert session.peaks["copy"] > 0
        assert session.sentinels == {}
        assert session.clocks.samples(0, monotonic()) == []
