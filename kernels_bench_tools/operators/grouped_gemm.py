"""Grouped matrix products: consecutive rows belong to an expert, and each expert has a weight matrix of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Output,
    Workload,
    model_sets,
    product_tolerance,
    size_in_bytes,
)

AXES = ("rows", "experts", "in_features", "out_features", "skewed")
SKEW = 1.0
"""Exponent of Zipf's law: the first expert gets about four times the average of eight."""


def reference(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Return (rows, n): ``x[start:end] @ weight[expert].T`` for each expert.

    ``x`` is (rows, k), ``weight`` (experts, n, k), and ``ends`` (experts,) where the rows of each expert end, int32.
    """
    stops = ends.tolist()
    starts = [0, *stops[:-1]]
    return torch.cat([x[a:b] @ one.t() for a, b, one in zip(starts, stops, weight, strict=True)])


def torch_grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Compute :func:`reference` with torch's operation for it."""
    return torch.nn.functional.grouped_mm(x, weight.transpose(1, 2), offs=ends)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``x`` (rows, in_features), ``weight`` (experts, out_features, in_features) and ``ends`` (experts,).

    Each row belongs to a random expert: all are equally likely, or follow Zipf's law if skewed. Where there are fewer
    rows than experts all rows have different ones, as those of one token. The weights are scaled so that results have a
    variance of 1.
    """
    rows, experts, columns, features = (int(workload.axes[axis]) for axis in AXES[:4])
    shapes = [(rows, columns), (experts, features, columns)]
    x, weight = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    likely = torch.arange(1, experts + 1) ** -(SKEW if workload.axes["skewed"] else 0.0)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(likely, rows, replacement=rows > experts, generator=generator)
    return x, weight.mul_(columns**-0.5), _ends(torch.bincount(chosen, minlength=experts)).to(device)


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, weight, ends = inputs
    counts = torch.zeros_like(ends)
    counts[-1] = len(x)
    yield "all rows of the last expert", (x, weight, _ends(counts))
    counts[-1] -= 1
    counts[0] += 1
    yield "experts without rows", (x, weight, _ends(counts))
    yield "spikes", (helpers.spikes(x), weight, ends)
    yield "column-major weights", (x, helpers.transposed(weight, 1), ends)
    yield "padded rows", (helpers.padded_rows(x), helpers.padded_rows(weight), ends)
    odd = helpers.with_axes(workload, rows=37, in_features=136, out_features=72)
    yield "37 rows, 136 x 72", make_inputs(odd, x.device, workload.seed + 1000)


def bytes_of_used_experts(inputs: Inputs) -> dict[int, int]:
    """Return the bytes of the weights of all experts that have a row."""
    _, weight, ends = inputs
    return {1: ends.unique().count_nonzero().item() * size_in_bytes(weight[0])}


def _name(rows: int, experts: int, in_features: int, out_features: int, skewed: bool) -> str:
    return f"{'Skewed' if skewed else 'Even'}_R{rows}_E{experts}_K{in_features}_N{out_features}"


_workloads = partial(helpers.make_workloads, AXES, _name)

# Both products of Mixtral-8x7B's experts, and the first of Qwen3-30B-A3B's.
_MIXTRAL = ((4096, 8, 4096, 28672), (4096, 8, 14336, 4096))
_QWEN3 = (16384, 128, 2048, 1536)
_EVEN = [(*sizes, False) for sizes in (*_MIXTRAL, _QWEN3)]

OPERATOR = Operator(
    name="grouped_gemm",
    title="Grouped Matrix Products",
    axes=AXES,
    workload_sets={
        "default": _workloads("bfloat16", "", (*_EVEN, *((*sizes, True) for sizes in (_MIXTRAL[0], _QWEN3)))),
        "large": _workloads("bfloat16", "", ((32768, *_EVEN[0][1:]), (131072, *_EVEN[2][1:]))),
        "decode": _workloads("bfloat16", "", ((2, *_EVEN[0][1:]), (64, *_EVEN[0][1:]), (256, *_EVEN[2][1:]))),
        "cpu": _workloads("float32", "cpu_", ((64, 8, 256, 512, False),)),
        "smoke": _workloads("float32", "smoke_", ((24, 3, 128, 64, True),)),
        **model_sets("grouped_gemm", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: 2 * inputs[0].numel() * inputs[1].shape[1],
    outputs=(Output(shape=lambda inputs: (inputs[0].shape[0], inputs[1].shape[1])),),
    slices=helpers.sliced(None, 1, None, into=-1, times=8),  # 1 GB of the weights in float64
    edge_cases=edge_cases,
    tolerance=product_tolerance,
    baseline=torch_grouped,
    smaller=partial(helpers.limit_axes, rows=64, in_features=256, out_features=128),
    multiples={"in_features": 8, "out_features": 8},  # 16 bytes
    nonfinite={"nan": (0,)},
    # Which rows belong to which expert does not change either: other ends would be no ends of this many rows.
    fixed=(2,),
    parameters=(1,),
    partly_read=bytes_of_used_experts,
)
