from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.measure.timing import (
    MAX_INPUT_SETS,
    MAX_ROTATED_BYTES,
    input_set_count,
    last_level_cache_bytes,
    measure,
)
from kernels_bench_tools.records import CacheState, Timer


def test_the_cpu_is_timed_by_a_monotonic_clock() -> None:
    found = measure(lambda x: time.sleep(0.002), [(torch.zeros(1),)], "cpu")

    assert found.latency.timer is Timer.MONOTONIC
    assert 2.0 <= found.latency.p50 < 4.0
    assert found.latency.ci_low is not None
    assert found.kernels == []
    assert found.span_ms is None


def test_calls_go_round_the_input_sets_in_turn() -> None:
    seen: list[int] = []
    sets = [(torch.tensor(number),) for number in range(3)]

    found = measure(lambda x: seen.append(int(x)), sets, "cpu")

    assert seen == [number % 3 for number in range(len(seen))]
    assert found.latency.input_sets == 3


def test_input_sets_that_fit_in_the_cache_are_not_called_cold() -> None:
    assert measure(lambda x: None, [(torch.zeros(1),)], "cpu").latency.cache is CacheState.HOT


def test_enough_input_sets_exceed_the_cache_twice() -> None:
    assert input_set_count(2**20, "cpu") * 2**20 >= min(2 * last_level_cache_bytes(), MAX_ROTATED_BYTES)


def test_input_sets_are_bounded_in_number_and_size() -> None:
    assert input_set_count(1, "cpu") == MAX_INPUT_SETS
    assert input_set_count(2**40, "cpu") == 1


def test_a_flushed_device_needs_one_input_set() -> None:
    assert input_set_count(1, "cuda") == 1


def test_a_real_operator_is_measured_cold(
    layer_norm: Operator, tiny: Workload, torch_layer_norm: Callable[..., Any]
) -> None:
    big = Workload(name="big", axes={"batch": 1, "seq_len": 256, "hidden_dim": 1024}, dtype="float32")
    count = input_set_count(2 * 256 * 1024 * 4, "cpu")
    sets = [layer_norm.inputs(big, "cpu", seed) for seed in range(2 * count)]

    found = measure(torch_layer_norm, sets, "cpu")

    assert found.latency.cache is CacheState.ROTATED
    assert found.latency.reps >= 6
    assert found.latency.p10 <= found.latency.p50 <= found.latency.p90
