"""Layer normalization, as most tests of measurements use it: the operator, what torch has for it, and a workload."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import Workload, find_operator

LAYER_NORM = find_operator("layer_norm")
TINY = Workload(name="tiny", axes={"batch": 2, "seq_len": 8, "hidden_dim": 64}, dtype="float32")


def torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def compile_for(workload: Workload, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for a workload's inputs; for others, such as edge cases, the graph runs as it is, which is faster."""
    from torch._inductor.compile_fx import compile_fx  # slow

    def backend(graph: Any, examples: list[Any]) -> Any:
        timed = examples[0].shape == tuple(workload.axes.values())
        return compile_fx(graph, examples) if timed else graph.forward

    return torch.compile(function, dynamic=False, backend=backend)
