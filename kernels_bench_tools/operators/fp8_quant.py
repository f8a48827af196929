"""Quantization to FP8 (e4m3) with one scale per row, per 128 columns of a row, or per 128 x 128 tile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Tolerance, Workload, one_slice

AXES = ("function", "tokens", "hidden_dim")
GROUPS = {"row": "Row-wise", "block": "Blocks of 1x128", "tile": "Blocks of 128x128"}
BLOCK = 128
LARGEST = 448.0
"""The largest value of e4m3."""
SMALLEST = 1e-12
"""Lower bound of a block's maximum, for blocks of zeros."""
FLOPS_PER_ELEMENT = 4
"""Absolute value, maximum, quotient and conversion."""
ODD_SIZES = ((5, 1000), (3, 769), (200, 300))


def reference(x: Tensor, block_rows: int, block_columns: int) -> tuple[Tensor, Tensor]:
    """Return ``x / scale``, unrounded, and each block's ``scale = max(|x|) / 448``; the last blocks may be smaller."""
    rows, columns = x.shape
    below, beside = -rows % block_rows, -columns % block_columns
    padded = functional.pad(x, (0, beside, 0, below))
    blocks = padded.view((rows + below) // block_rows, block_rows, -1, block_columns)
    scale = blocks.abs().amax((1, 3)).clamp(min=SMALLEST) / LARGEST
    return (blocks / scale[:, None, :, None]).view(padded.shape)[:rows, :columns], scale


def torch_quantize(x: Tensor, block_rows: int, block_columns: int) -> tuple[Tensor, Tensor]:
    """Compute :func:`reference` in float32, with the values rounded to FP8."""
    values, scale = reference(x.float(), block_rows, block_columns)
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).contiguous(), scale


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return ``x`` (normal), and the rows and columns of a block."""
    tokens, hidden_dim = int(workload.axes["tokens"]), int(workload.axes["hidden_dim"])
    x = helpers.random_tensors([(tokens, hidden_dim)], workload.torch_dtype, device, seed)
    blocks = {"row": (1, hidden_dim), "block": (1, BLOCK), "tile": (BLOCK, BLOCK)}
    return *x, *blocks[str(workload.axes["function"])]


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, *block = inputs
    zeros = x.clone()
    zeros[0], zeros[:, :BLOCK] = 0, 0  # a whole row, and whole blocks
    yield "zero blocks", (zeros, *block)  # 0 / 0
    yield "tiny values", (x * 1e-3, *block)
    yield "large values", (x * 1e4, *block)
    yield "equal values", (helpers.constant_rows(x), *block)  # all become the largest value of e4m3
    yield "spikes", (helpers.spikes(x), *block)  # the others lose most digits, or become 0
    yield "column-major", (helpers.transposed(x), *block)
    yield "padded rows", (helpers.padded_rows(x), *block)
    yield from helpers.odd_shapes(workload, AXES[1:], ODD_SIZES, make_inputs, x.device)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Allow one rounding to FP8 in values, and a few of float32 in scales.

    The reference is not rounded: both neighbours of a tie pass, truncation fails. Half a step of e4m3 is 1/16 of a
    power of two, or half the smallest number.
    """
    if dtype == torch.float8_e4m3fn:
        return Tolerance(rtol=1.01 / 16, atol=1.01 * 2**-10)
    # For zeros any tiny scale is correct.
    return Tolerance(rtol=8 * torch.finfo(torch.float32).eps, atol=SMALLEST)


_workloads = partial(
    helpers.make_workloads, AXES, "FP8_{function}_T{tokens}_D{hidden_dim}".format, groups=GROUPS
)

OPERATOR = Operator(
    name="fp8_quant",
    title="FP8 Quantization",
    axes=AXES,
    workload_sets={
        "default": _workloads("bfloat16", "", ((4096, 4096), (16384, 4096))),
        "large": _workloads("bfloat16", "", ((16384, 14336),)),
        "decode": _workloads("bfloat16", "", ((1, 4096), (8, 4096), (64, 4096))),
        # Sizes and dtype of TrainScale.
        "trainscale": _workloads("float32", "trainscale_", ((4096, 4096), (16384, 4096))),
        "cpu": _workloads("float32", "cpu_", ((128, 1024),)),
        "smoke": _workloads("float32", "smoke_", ((16, 256),)),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: FLOPS_PER_ELEMENT * inputs[0].numel(),
    outputs=(Output("values", "float8_e4m3fn"), Output("scale", "float32")),
    slices=helpers.row_slices,
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=torch_quantize,
    smaller=partial(helpers.limit_axes, tokens=192),  # one and a half tiles
    variants={GROUPS["tile"]: {"slices": one_slice}},  # rows of values and of scales differ
)
