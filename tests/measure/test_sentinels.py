from __future__ import annotations

from time import process_time

from kernels_bench_tools.measure.device.peaks import cpu_buffer_bytes
from kernels_bench_tools.measure.device.sentinels import measure_sentinels


def test_a_cpu_times_a_copy_a_matmul_and_an_empty_call() -> None:
    found = measure_sentinels("cpu")

    assert set(found) == {"copy", "matmul", "null"}
    assert 0 < found["null"] < 0.1
    assert found["null"] < found["matmul"] / 10
    assert found["null"] < found["copy"] / 10


def test_the_copy_goes_through_memory() -> None:
    # No memory of today moves 2 TB/s for a CPU.
    gb_per_s = 2 * cpu_buffer_bytes() / measure_sentinels("cpu")["copy"] / 1e6

    assert 0.1 < gb_per_s < 2000


def test_sentinels_take_a_fraction_of_a_second() -> None:
    start = process_time()
    measure_sentinels("cpu")

    assert process_time() - start < 2
