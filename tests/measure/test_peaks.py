from time import process_time

import pytest
import torch

from kernels_bench_tools.measure.device.peaks import cpu_buffer_bytes, host_ms, measure_peaks
from kernels_bench_tools.measure.timing.caches import last_level_cache_bytes


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    precision, start = torch.get_float32_matmul_precision(), process_time()
    measured = measure_peaks("cpu")

    assert process_time() - start < 10  # usually half a second
    assert torch.is_grad_enabled()
    assert torch.get_float32_matmul_precision() == precision
    return measured


def test_a_cpu_has_four_mixes_and_one_matmul(peaks: dict[str, float]) -> None:
    assert set(peaks) == {"read", "write", "copy", "triad", "matmul_float32"}


def test_figures_are_gigabytes_and_teraflops(peaks: dict[str, float]) -> None:
    traffic = [peaks[name] for name in ("read", "write", "copy", "triad")]

    # Between an old laptop and a large server, whatever else runs.
    assert all(0.5 < value < 2000 for value in traffic)
    assert 0.002 < peaks["matmul_float32"] < 50


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
    assert 3 * cpu_buffer_bytes() > 2 * min(last_level_cache_bytes(), 2**28)
