"""What only a CUDA device can show; skipped where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from implementations import code_of
from torch import Tensor

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import NoKernelError
from kernels_bench_tools.measure.timing.measure import TimingResult, measure
from kernels_bench_tools.schema.record import CacheState, Status, Timer

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def timed(function: Callable[..., Any], *inputs: Tensor) -> TimingResult:
    with torch.no_grad():
        return measure(function, [inputs], "cuda")


def test_layer_norm_is_one_kernel_timed_by_cupti(
    layer_norm: Operator, torch_layer_norm: Callable[..., Any]
) -> None:
    workload = Workload(name="w", axes={"batch": 4, "seq_len": 512, "hidden_dim": 4096}, dtype="bfloat16")

    found = timed(torch_layer_norm, *layer_norm.inputs(workload, "cuda", 0))

    assert found.note == ""
    assert found.latency.timer is Timer.CUPTI
    assert found.latency.cache is CacheState.READ_FLUSH
    assert found.latency.reps >= 30
    assert [kernel.count for kernel in found.kernels] == [1]
    assert "layer_norm" in found.kernels[0].name
    assert found.span_ms == pytest.approx(found.latency.p50, rel=0.01)
    assert found.events_ms is not None
    assert found.events_ms > 0.9 * found.latency.p50


def test_the_interval_is_narrow() -> None:
    found = timed(lambda x: x * 2, random(4096, 4096)).latency

    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_high - found.ci_low < 0.02 * found.p50


def test_time_grows_with_the_bytes() -> None:
    small, large = (timed(lambda x: x * 2, random(rows, 8192)).latency.p50 for rows in (8192, 32768))

    assert large / small == pytest.approx(4, rel=0.15)


def test_a_cold_call_is_not_faster_than_memory() -> None:
    x = random(8192, 8192)

    ms = timed(lambda x: x.clone(), x).latency.p50

    assert 2 * x.numel() * 2 / ms / 1e6 < 10_000  # GB/s: twice what any current GPU has


def test_a_small_input_is_slower_cold_than_hot() -> None:
    inputs = (random(2048, 2048),)  # 8 MB, and as much again for the result: both stay in the cache
    cold, hot = (
        median(call.ms for call in CudaTimer(lambda x: x.clone(), inputs, "cuda", cold=cold).by_kernels(60))
        for cold in (True, False)
    )

    # 1.5 on an H200, whose cache is about twice as fast as its memory for a copy of this size.
    assert cold > 1.25 * hot


def test_host_time_between_kernels_is_not_in_the_span() -> None:
    def two_kernels(x: Tensor) -> Tensor:
        y = x * 2
        time.sleep(0.0005)
        return y + 1

    found = timed(two_kernels, random(256, 256))

    assert found.span_ms is not None
    assert found.span_ms < 0.1


def test_every_kernel_of_a_call_is_listed() -> None:
    found = timed(lambda x: (x * 2).cumsum(0) + 1, random(512, 512))

    assert sum(kernel.count for kernel in found.kernels) >= 3
    assert sum(kernel.ms for kernel in found.kernels) == pytest.approx(found.latency.p50, rel=0.1)
    assert not any("spin_kernel" in kernel.name for kernel in found.kernels)


def test_kernels_of_the_flush_are_not_listed() -> None:
    found = timed(lambda x: x * 2, random(512, 512))

    assert not any("reduce" in kernel.name.lower() for kernel in found.kernels)


def test_copies_and_fills_count_as_work() -> None:
    found = timed(lambda x: torch.empty_like(x).copy_(x), random(1024, 1024))

    assert [kernel.name.lower().startswith("memcpy") for kernel in found.kernels] == [True]


def test_a_function_that_launches_nothing_is_an_error() -> None:
    with pytest.raises(NoKernelError):
        timed(lambda x: x, random(8, 8))


def test_a_result_that_is_cached_instead_of_computed_is_an_error(
    torch_layer_norm: Callable[..., Any],
) -> None:
    kept: dict[int, Tensor] = {}

    def cheating(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = torch_layer_norm(x, weight, bias)
        return kept[x.data_ptr()]

    (record,) = run_benchmark("layer_norm", cheating, workloads="smoke")

    assert record.status is not Status.OK


def test_out_of_device_memory_is_a_status_and_frees_memory() -> None:
    def greedy(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.empty(2**50, device="cuda", dtype=torch.int8)

    (record,) = run_benchmark("layer_norm", greedy, workloads="smoke")

    assert record.status is Status.OOM


def test_a_record_of_a_gpu_is_complete(torch_layer_norm: Callable[..., Any]) -> None:
    (record,) = run_benchmark("layer_norm", torch_layer_norm, workloads="smoke")

    assert record.status is Status.OK, record.err
    assert record.device is not None
    assert record.device.kind == "cuda"
    assert record.env.gpu == record.device.name
    assert record.env.sm
    assert record.env.cuda
    assert record.env.l2_bytes > 0
    assert record.peak_bytes is not None
    assert record.peak_bytes >= 2 * 32 * 256 * 4
    assert record.kernels
    assert float(record.tags["events_over_cupti"]) > 0.9


def test_the_triton_notebook_is_correct_on_every_default_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    (tmp_path / "triton_cell.py").write_text(code_of("layer_norm", "triton_layer_norm"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from triton_cell import triton_layer_norm  # type: ignore[import-not-found]

    sys.modules.pop("triton_cell")
    records = run_benchmark("layer_norm", triton_layer_norm)

    assert records[0].workload == "LN_B16_S2048_D4096"
    assert {record.status for record in records} == {Status.OK}, [record.err for record in records]
    assert all("refused" not in record.corr for record in records)
    assert all("_layer_norm" in record.kernels[0].name for record in records)


@pytest.mark.parametrize("columns", [64, 769, 16384, 16385, 65536])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_triton_notebook_is_correct_for_any_row_length(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layer_norm: Operator,
    columns: int,
    dtype: str,
) -> None:
    from kernels_bench_tools.measure.correctness.check import check

    pytest.importorskip("triton")
    (tmp_path / "triton_cell.py").write_text(code_of("layer_norm", "triton_layer_norm"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from triton_cell import triton_layer_norm

    sys.modules.pop("triton_cell")
    workload = Workload(name="w", axes={"batch": 2, "seq_len": 5, "hidden_dim": columns}, dtype=dtype)

    verdict = check(layer_norm, workload, triton_layer_norm, layer_norm.inputs(workload, "cuda", 0))

    assert verdict.ok, verdict.reason
    assert "refused" not in verdict.corr
