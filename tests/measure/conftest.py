from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels_bench_tools.measure.operator import Operator, Workload, find_operator
from kernels_bench_tools.measure.timing.sampling import SamplingLimits


@pytest.fixture
def few_input_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let timed calls rotate through twelve sets of inputs, not through as many as exceed the caches, up to 256."""
    monkeypatch.setattr("kernels_bench_tools.measure.timing.caches.MAX_INPUT_SETS", 12)


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch, small_buffers: None) -> None:
    """Let a trial time few calls on the CPU, once."""
    limits = SamplingLimits(warmup_seconds=0.02, sample_seconds=0.05)
    monkeypatch.setattr("kernels_bench_tools.measure.timing.measure.CPU_LIMITS", limits)
    monkeypatch.setattr("kernels_bench_tools.measure.timing.measure.CPU_ATTEMPTS", 1)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure peaks of the CPU with buffers of 4 instead of 256 MiB."""
    monkeypatch.setattr("kernels_bench_tools.measure.device.peaks._CPU_BUFFER_BYTES", (2**22, 2**22))


@pytest.fixture
def layer_norm() -> Operator:
    return find_operator("layer_norm")


@pytest.fixture
def tiny() -> Workload:
    return Workload(name="tiny", axes={"batch": 2, "seq_len": 8, "hidden_dim": 64}, dtype="float32")


@pytest.fixture
def torch_layer_norm() -> Callable[..., Any]:
    def torch_layer_norm(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
    ) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    return torch_layer_norm


@pytest.fixture
def compiled() -> Callable[..., Any]:
    """Compile a function for a workload's inputs; for others, such as edge cases, the graph runs as it is, which is faster."""

    def compile_for(workload: Workload, function: Callable[..., Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx  # slow

        def backend(graph: Any, examples: list[Any]) -> Any:
            timed = examples[0].shape == tuple(workload.axes.values())
            return compile_fx(graph, examples) if timed else graph.forward

        return torch.compile(function, dynamic=False, backend=backend)

    return compile_for


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KBT_CONTEXT", raising=False)
