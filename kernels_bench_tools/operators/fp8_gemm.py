"""Linear layers with FP8 (e4m3) operands: scales per row, or per block of 128 as in DeepSeek-V3; bfloat16 results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Workload, product_tolerance
from kernels_bench_tools.operators import fp8_quant
from kernels_bench_tools.operators.fp8_quant import BLOCK, torch_quantize

AXES = ("function", "tokens", "in_features", "out_features")
GROUPS = {"row": "Row-wise", "block": "Blocks of 128"}
WEIGHTS_AT_ONCE = 1 << 26
"""Elements of the weight that the reference converts at a time: 0.5 GB in float64, twice."""
ALIGNED_ROWS = 16
"""Unused columns between rows: kernels that load whole tiles need rows to start at multiples of 16 bytes."""
ODD_SHAPES = {
    "row": ((3, 272, 144), (65, 784, 208), (5, 200, 72)),
    "block": ((1, 128, 128), (3, 384, 256), (65, 640, 384)),
}


def dequantized(values: Tensor, scale: Tensor) -> Tensor:
    """Return (rows, columns) ``values``, each multiplied by the scale of its block; ``scale`` is (down, across)."""
    down, across = scale.shape
    blocks = values.reshape(down, values.shape[0] // down, across, -1)
    return (blocks * scale[:, None, :, None]).reshape(values.shape)


def reference(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """Return (tokens, n): the product of dequantized (tokens, k) ``x`` and (n, k) ``weight``, transposed.

    Row-wise, the scales are (tokens, 1) and (n, 1); in blocks (tokens, k / 128) and (n / 128, k / 128).
    """
    return functional.linear(dequantized(x, x_scale), dequantized(weight, weight_scale))


def with_quantized_x(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """Compute :func:`reference` with ``x`` dequantized and quantized again, with scales of what it holds."""
    values, scale = fp8_quant.reference(dequantized(x, x_scale), 1, x.shape[1] // x_scale.shape[1])
    return reference(values.to(torch.float8_e4m3fn).to(x.dtype), scale, weight, weight_scale)


def torch_linear(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """Compute :func:`reference` in float32, rounded to bfloat16."""
    return reference(x.float(), x_scale, weight.float(), weight_scale).bfloat16()


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return ``x`` (tokens, in_features), its scales, ``weight`` (out_features, in_features) and its scales.

    Both are normal values that were quantized, the weight's scaled so that results have a variance of 1.
    """
    return _quantized(workload, *_values(workload, device, seed))


def _values(workload: Workload, device: str | torch.device, seed: int) -> tuple[Tensor, Tensor]:
    tokens, columns, rows = (int(workload.axes[axis]) for axis in AXES[1:])
    x, weight = helpers.random_tensors([(tokens, columns), (rows, columns)], torch.float32, device, seed)
    return x, weight.mul_(columns**-0.5)


def _quantized(workload: Workload, x: Tensor, weight: Tensor) -> Inputs:
    columns = x.shape[1]
    of_x, of_weight = ((1, BLOCK), (BLOCK, BLOCK))
    if workload.axes["function"] == "row":
        of_x = of_weight = (1, columns)
    return *torch_quantize(x, *of_x), *torch_quantize(weight, *of_weight)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, weight = _values(workload, inputs[0].device, workload.seed)
    zeros = x.clone()
    zeros[0], zeros[:, :BLOCK] = 0, 0  # a whole row, and whole blocks: their scales are tiny
    yield "zero blocks", _quantized(workload, zeros, weight)
    yield "spikes", _quantized(workload, helpers.spikes(x), weight)
    yield "spikes in the weight", _quantized(workload, x, helpers.spikes(weight))
    # float16 can hold neither.
    yield "large and tiny scales", _quantized(workload, x * 1e6, weight * 1e-6)
    # A scale of another block is wrong by a factor of 8 at least.
    sizes = 8.0 ** (torch.arange(x.shape[1], device=x.device) // BLOCK % 4)
    yield "uneven blocks", _quantized(workload, x / sizes, weight * sizes)
    x, x_scale, weight, weight_scale = inputs
    padded = (helpers.padded_rows(value, ALIGNED_ROWS) for value in (x, weight))
    yield "padded rows", (next(padded), x_scale, next(padded), weight_scale)
    yield "column-major scales", (x, helpers.transposed(x_scale), weight, helpers.transposed(weight_scale))
    shapes = ODD_SHAPES[str(workload.axes["function"])]
    yield from helpers.odd_shapes(workload, AXES[1:], shapes, make_inputs, x.device)


def slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield slices of the weight's rows, which are columns of the result; whole blocks of them."""
    x, x_scale, weight, weight_scale = inputs
    height = weight.shape[0] // weight_scale.shape[0]
    for part in helpers.parts(weight_scale.shape[0], height * weight.shape[1], WEIGHTS_AT_ONCE):
        rows = slice(part.start * height, part.stop * height)
        yield (..., rows), (x, x_scale, weight[rows], weight_scale[part])


_workloads = partial(
    helpers.make_workloads,
    AXES,
    "FP8Linear_{function}_T{tokens}_K{in_features}_N{out_features}".format,
    "float8_e4m3fn",
    groups=GROUPS,
)

# The linear layers of Llama-3.1-8B: queries, keys and values; attention's output; both of the feed-forward layer.
_LAYERS = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))

OPERATOR = Operator(
    name="fp8_gemm",
    title="FP8 Linear Layers",
    axes=AXES,
    workload_sets={
        "default": _workloads("", tuple((2048, *layer) for layer in _LAYERS)),
        "decode": _workloads("", tuple((tokens, 4096, 28672) for tokens in (1, 32))),
        "cpu": _workloads("cpu_", ((128, 1024, 1024),)),
        "smoke": _workloads("smoke_", ((16, 256, 384),)),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: 2 * inputs[0].numel() * inputs[2].shape[0],
    outputs=(Output(dtype="bfloat16", shape=lambda inputs: (inputs[0].shape[0], inputs[2].shape[0])),),
    slices=slices,
    edge_cases=edge_cases,
    tolerance=product_tolerance,
    baseline=torch_linear,
    smaller=partial(helpers.limit_axes, tokens=160, in_features=512, out_features=256),
    multiples={"in_features": 128, "out_features": 128},
    parameters=(2, 3),
    precisions={"fp8": with_quantized_x},
)
