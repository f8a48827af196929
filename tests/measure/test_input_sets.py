from kernels_bench_tools.measure.timing.caches import (
    CPU_CACHES,
    FREE_MEMORY_SHARE,
    MAX_INPUT_SETS,
    MAX_ROTATED_BYTES,
    free_bytes,
    input_set_count,
    last_level_cache_bytes,
)


def test_enough_input_sets_exceed_the_cache_four_times() -> None:
    size = 4 * 2**20  # so large that their number is no bound, whatever cache this machine has
    affordable = min(MAX_ROTATED_BYTES, FREE_MEMORY_SHARE * free_bytes("cpu") - size)

    assert CPU_CACHES == 4
    assert input_set_count(size, "cpu") * size >= min(4 * last_level_cache_bytes(), affordable)


def test_input_sets_are_bounded_in_number_and_size() -> None:
    assert input_set_count(1, "cpu") == MAX_INPUT_SETS
    assert input_set_count(2**40, "cpu") == 1
    assert input_set_count(1, "cpu", 2**40) == 1  # a call reads one row of a table
