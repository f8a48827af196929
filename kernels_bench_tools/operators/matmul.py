"""Linear layers: products of activations with a weight matrix, optionally with a bias."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Output,
    Workload,
    model_sets,
    product_tolerance,
)

AXES = ("function", "tokens", "in_features", "out_features")
GROUPS = {"linear": "Linear", "linear_bias": "Linear with bias"}
PREFIXES = {"linear": "Linear", "linear_bias": "LinearBias"}
ODD_SHAPES = ((3, 769, 130), (65, 40, 200), (1, 128, 67), (1160, 72, 136))
"""The last has more rows than eight tiles of 128, which kernels often compute as a group."""


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``: (..., n) of (..., k), (n, k) and (n,)."""
    return functional.linear(x, weight, bias)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``x`` (tokens, in_features), ``weight`` (out_features, in_features), maybe ``bias`` (out_features).

    The weight is scaled so that results have a variance of 1, as after the initialization of a layer.
    """
    tokens, columns, rows = (int(workload.axes[axis]) for axis in AXES[1:])
    shapes: list[tuple[int, ...]] = [(tokens, columns), (rows, columns)]
    if workload.axes["function"] == "linear_bias":
        shapes.append((rows,))
    x, weight, *bias = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    return x, weight.mul_(columns**-0.5), *bias


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, weight, *bias = inputs
    yield "zeros", (torch.zeros_like(x), weight, *bias)
    yield "spikes", (helpers.spikes(x), weight, *bias)
    yield "column-major", (helpers.transposed(x), weight, *bias)
    yield "column-major weight", (x, helpers.transposed(weight), *bias)
    yield "padded rows", (helpers.padded_rows(x), helpers.padded_rows(weight), *bias)
    yield from helpers.odd_shapes(workload, AXES[1:], ODD_SHAPES, make_inputs, x.device)


_name = helpers.named(PREFIXES, "T{tokens}_K{in_features}_N{out_features}")
_workloads = partial(helpers.make_workloads, AXES, _name, groups=GROUPS)
_DEFAULT = ((2048, 4096, 4096), (4096, 4096, 4096), (2048, 4096, 28672), (2048, 14336, 4096))
_LARGE, _BIASED = (8192, 8192, 8192), (3584, 4608)

OPERATOR = Operator(
    name="matmul",
    title="Linear Layers",
    axes=AXES,
    workload_sets={
        # Square, and the feed-forward layer of Llama-3.1-8B; Qwen2.5-7B's attention has a bias.
        "default": _workloads("bfloat16", "", _DEFAULT, ((2048, *_BIASED), (8192, *_BIASED))),
        "large": _workloads("bfloat16", "", (_LARGE, (16384, 8192, 28672)), ((32768, 8192, 10240),)),
        "decode": _workloads(
            "bfloat16", "", *([(n, *sizes) for n in (1, 8, 64)] for sizes in ((4096, 28672), _BIASED))
        ),
        "cpu": _workloads("float32", "cpu_", ((16, 1024, 1024),), ((128, 1024, 1024),)),
        "smoke": _workloads("float32", "smoke_", ((16, 128, 192),), ((16, 128, 192),)),
        **model_sets("matmul", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: 2 * inputs[0].numel() * inputs[1].shape[0],
    outputs=(Output(shape=lambda inputs: (*inputs[0].shape[:-1], inputs[1].shape[0])),),
    slices=helpers.sliced(None, 0, 0, into=-1, times=8),  # 1 GB of the weight in float64
    edge_cases=edge_cases,
    tolerance=product_tolerance,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, tokens=64, in_features=512, out_features=256),
    nonfinite={"nan": (0,)},
    gradients=(0, 1),
    parameters=(1,),
    variants={GROUPS["linear_bias"]: {"gradients": (0, 1, 2), "parameters": (1, 2)}},
)
