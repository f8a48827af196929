"""The feed-forward layer of Llama and Qwen: two products with SwiGLU between them, as ``LlamaMLP`` of the models has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Tolerance,
    Workload,
    dtype_tolerance,
    eps_of,
    model_sets,
    product_tolerance,
)

AXES = ("tokens", "hidden_dim", "intermediate_dim")
INTERMEDIATE_AT_ONCE = 1 << 27
"""Elements of gate and up that the reference computes at a time: 1 GB in float64."""
LARGE = 30.0
MOST_MEAN = 1.5
"""Allowed mean error in half precision, as a multiple of that of torch's operator. Measured: at most 1.3 with eight partial sums
in half precision, 1.3 to 1.6 with 16 of them, 1.8 to 2.3 with weights of one or both products in 8 bits, but 1.1 to 1.6 if only
those of the second product are, with a scale for each 32 of them and all else in float32."""
ODD_SHAPES = ((3, 130, 97), (1160, 40, 200), (1, 67, 129))


def reference(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return (tokens, hidden_dim), the shape of ``x``: ``(silu(x @ gate.T) * (x @ up.T)) @ down.T``.

    ``gate_up`` is (2 * intermediate_dim, hidden_dim) with the gate first, ``down`` (hidden_dim, intermediate_dim).
    """
    gate, up = functional.linear(x, gate_up).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate) * up, down)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``x`` (tokens, hidden_dim), ``gate_up`` (2 * intermediate_dim, hidden_dim) and ``down``.

    ``down`` is (hidden_dim, intermediate_dim). Gate and up have a variance of 1, and the result has that of
    SiLU(gate) * up, which is about 0.36.
    """
    tokens, hidden, intermediate = (int(workload.axes[axis]) for axis in AXES)
    shapes = ((tokens, hidden), (2 * intermediate, hidden), (hidden, intermediate))
    x, gate_up, down = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    return x, gate_up.mul_(hidden**-0.5), down.mul_(intermediate**-0.5)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yield edge cases; where the intermediate values are large, ``down`` is small, so that results are not."""
    x, gate_up, down = inputs
    some = x.clone()
    some[::2] = 0
    yield "rows of zeros", (some, gate_up, down)
    # exp overflows in float32 for the gates below -88.
    yield f"x times {LARGE:g}", (x * LARGE, gate_up, down / LARGE**2)
    yield "spikes", (helpers.spikes(x), gate_up, down * (x.shape[1] / helpers.SPIKE**2))
    gate, up = gate_up.chunk(2)
    yield "small gates", (x, torch.cat((gate / LARGE, up)), down * LARGE)
    yield "column-major", (helpers.transposed(x), gate_up, down)
    yield "column-major weights", (x, helpers.transposed(gate_up), helpers.transposed(down))
    yield "padded rows", tuple(map(helpers.padded_rows, inputs))
    yield from helpers.odd_shapes(workload, AXES, ODD_SHAPES, make_inputs, x.device)


def slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield slices of tokens: gate and up of all would need much memory in float64."""
    x, gate_up, down = inputs
    for part in helpers.parts(len(x), len(gate_up), INTERMEDIATE_AT_ONCE):
        yield part, (x[part], gate_up, down)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the default tolerance plus that of rounded products; the mean error is limited, because weights in 8 bits meet the rest."""
    if torch.finfo(dtype).bits > 16:
        return product_tolerance(dtype)
    return replace(dtype_tolerance(dtype), mean=MOST_MEAN, products=eps_of(dtype) / 2)


_name = "T{tokens}_D{hidden_dim}_I{intermediate_dim}".format
_workloads = partial(helpers.make_workloads, AXES, _name)

_LLAMA, _QWEN = (4096, 14336), (4096, 12288)
"""Of Llama-3.1-8B and of Qwen3-8B."""

OPERATOR = Operator(
    name="mlp",
    title="Feed-Forward Layers",
    axes=AXES,
    workload_sets={
        "default": _workloads(
            "bfloat16", "", tuple((tokens, *sizes) for sizes in (_LLAMA, _QWEN) for tokens in (2048, 1, 32))
        ),
        "cpu": _workloads("float32", "cpu_", ((1, 512, 1536), (64, 512, 1536))),
        "smoke": _workloads("float32", "smoke_", ((16, 64, 96),)),
        **model_sets("mlp", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: 2 * len(inputs[0]) * (inputs[1].numel() + inputs[2].numel()),  # of the products
    slices=slices,
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, tokens=64, hidden_dim=256, intermediate_dim=384),
    nonfinite={"nan": (0,)},
    parameters=(1, 2),
)
