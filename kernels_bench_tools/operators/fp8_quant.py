"""Quantization to FP8 (e4m3), with a scale for each row, each 128 columns of a row, or each tile of 128 x 128."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.inputs import constant_rows, padded_rows, spikes, transposed
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Tolerance, Workload, whole
from kernels_bench_tools.measure.parts import some_rows_at_a_time, with_at_most

AXES = ("function", "tokens", "hidden_dim")
GROUPS = {"row": "Row-wise", "block": "Blocks of 1x128", "tile": "Blocks of 128x128"}
BLOCK = 128
LARGEST = 448.0
"""The largest number of e4m3."""
SMALLEST = 1e-12
"""A block of zeros is scaled as if this were its largest number."""
FLOPS_PER_ELEMENT = 4
"""Absolute value, maximum, quotient and conversion."""
MOST_TOKENS_TO_JUDGE = 192
ODD_SIZES = ((5, 1000), (3, 769), (200, 300))

Sizes = tuple[tuple[int, int], ...]


def reference(x: Tensor, block_rows: int, block_columns: int) -> tuple[Tensor, Tensor]:
    """Return ``x / scale``, not rounded to FP8, and each block's ``scale = max(|x|) / 448``.

    Args:
        x: (tokens, hidden_dim).
        block_rows: Rows that share a scale; the last block may have fewer.
        block_columns: Columns that share it.
    """
    rows, columns = x.shape
    below, beside = -rows % block_rows, -columns % block_columns
    padded = functional.pad(x, (0, beside, 0, below))
    blocks = padded.view((rows + below) // block_rows, block_rows, -1, block_columns)
    scale = blocks.abs().amax((1, 3)).clamp(min=SMALLEST) / LARGEST
    return (blocks / scale[:, None, :, None]).view(padded.shape)[:rows, :columns], scale


def torch_quantize(x: Tensor, block_rows: int, block_columns: int) -> tuple[Tensor, Tensor]:
    """Return the values rounded to FP8 and the scales in float32: the formula computed in float32."""
    values, scale = reference(x.float(), block_rows, block_columns)
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).contiguous(), scale


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return ``x``, normally distributed, and the rows and columns of a block."""
    tokens, hidden_dim = int(workload.axes["tokens"]), int(workload.axes["hidden_dim"])
    generator = torch.Generator(device=device).manual_seed(seed)
    x = torch.randn((tokens, hidden_dim), generator=generator, device=device, dtype=workload.torch_dtype)
    blocks = {"row": (1, hidden_dim), "block": (1, BLOCK), "tile": (BLOCK, BLOCK)}
    return x, *blocks[str(workload.axes["function"])]


def hard_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs that a careless kernel gets wrong.

    Together with the workload they have seven layouts: torch.compile makes a kernel for each and keeps 8.
    """
    x, *block = inputs
    zeros = x.clone()
    zeros[0], zeros[:, :BLOCK] = 0, 0  # a whole row, and whole blocks
    yield "zero blocks", (zeros, *block)  # 0 / 0
    yield "tiny values", (x * 1e-3, *block)
    yield "large values", (x * 1e4, *block)
    yield "equal values", (constant_rows(x), *block)  # all at the largest number of e4m3
    yield "spikes", (spikes(x), *block)  # the others are rounded to few digits, or none
    yield "column-major", (transposed(x), *block)
    yield "padded rows", (padded_rows(x), *block)
    for number, (tokens, hidden_dim) in enumerate(ODD_SIZES):
        odd = replace(workload, axes={**workload.axes, "tokens": tokens, "hidden_dim": hidden_dim})
        yield f"shape {tokens}x{hidden_dim}", make_inputs(odd, x.device, workload.seed + 1000 + number)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return what one rounding to FP8 costs, or a few of float32 in a scale.

    The reference is not rounded, so that either neighbour of a tie is right and a truncated number is not: half a
    step is 1/16 of a power of two, or half the smallest number.
    """
    if dtype == torch.float8_e4m3fn:
        return Tolerance(rtol=1.01 / 16, atol=1.01 * 2**-10)
    return Tolerance(
        rtol=8 * torch.finfo(torch.float32).eps, atol=SMALLEST
    )  # of zeros, any tiny scale is right


def fewer_tokens(workload: Workload) -> Workload:
    """Return the workload with as long rows, and at most 192 of them: one and a half tiles."""
    return with_at_most(workload, tokens=MOST_TOKENS_TO_JUDGE)


def _workloads(dtype: str, prefix: str, sizes: Sizes) -> list[Workload]:
    made = []
    for function, group in GROUPS.items():
        for tokens, hidden_dim in sizes:
            axes: dict[str, Any] = dict(zip(AXES, (function, tokens, hidden_dim), strict=True))
            name = f"{prefix}FP8_{function}_T{tokens}_D{hidden_dim}"
            made.append(Workload(name=name, axes=axes, dtype=dtype, group=group))
    return made


OPERATOR = Operator(
    name="fp8_quant",
    title="FP8 Quantization",
    axes=AXES,
    workload_sets={
        "default": _workloads("bfloat16", "", ((4096, 4096), (16384, 4096))),
        "large": _workloads("bfloat16", "", ((16384, 14336),)),
        "decode": _workloads("bfloat16", "", ((1, 4096), (8, 4096), (64, 4096))),
        # TrainScale's, in its type.
        "trainscale": _workloads("float32", "trainscale_", ((4096, 4096), (16384, 4096))),
        "cpu": _workloads("float32", "cpu_", ((128, 1024),)),
        "smoke": _workloads("float32", "smoke_", ((16, 256),)),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: FLOPS_PER_ELEMENT * inputs[0].numel(),
    outputs=(Output("values", "float8_e4m3fn"), Output("scale", "float32")),
    pieces=some_rows_at_a_time,
    cases=hard_cases,
    tolerance=tolerance,
    baseline=torch_quantize,
    smaller=fewer_tokens,
    variants={GROUPS["tile"]: {"pieces": whole}},  # a piece's rows are not those of its scales
)
