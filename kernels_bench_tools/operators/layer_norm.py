"""Layer normalization over the last axis, with weight and bias."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload

AXES = ("batch", "seq_len", "hidden_dim")
EPSILON = 1e-5
OTHER_EPSILON = 1e-6
"""Of an edge case, whose inputs have it as fourth."""
FLOPS_PER_ELEMENT = 7
"""Sum; difference, square and sum for the variance; scale, weight and bias."""
ODD_SHAPES = ((3, 5, 1000), (2, 3, 769), (2, 3, 8), (1, 2, 5000))
"""In rows of 8 columns a variance over 7 of them is wrong in every type; those of 5000 are whole tiles and a rest, also for tiles of 4096."""


def reference(x: Tensor, weight: Tensor, bias: Tensor, eps: float = EPSILON) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis of ``x``."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random ``x`` (batch, seq_len, hidden_dim), ``weight`` and ``bias`` (hidden_dim).

    Rows of ``x`` have means and standard deviations of 0.5 to 1.5: without them, those of long normal rows would be 0 and 1
    within the tolerance of half precision.
    """
    shape = [int(workload.axes[axis]) for axis in AXES]
    # Weight and bias are not ones and zeros, so that a kernel that ignores them fails.
    x, (weight, bias) = helpers.random_tensors([shape, (2, shape[-1])], workload.torch_dtype, device, seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    mean, deviation = 0.5 + torch.rand((2, *shape[:-1], 1), generator=generator, device=device)
    x.mul_(deviation).add_(mean)
    return x, weight.clone(), bias.clone()


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, weight, bias = inputs
    yield "large offset", (x + 300, weight, bias)  # the variance as E[x²] - mean² cancels
    yield "tiny values", (x * 1e-3, weight, bias)  # eps matters
    yield f"eps {OTHER_EPSILON:g}", (x * 1e-3, weight, bias, OTHER_EPSILON)
    yield "constant rows", (helpers.constant_rows(x), weight, bias)  # the variance is 0
    yield "values x100", (x * 100, weight, bias)  # eps does not matter
    yield "large values", (x * 5e3, weight, bias)  # their squares overflow float16
    yield "spikes", (helpers.spikes(x), weight, bias)
    yield "transposed", (helpers.transposed(x), weight, bias)
    yield "padded rows", (helpers.padded_rows(x), weight, bias)
    shapes = (*ODD_SHAPES, (1, 1, x.shape[-1]))
    yield from helpers.odd_shapes(workload, AXES, shapes, make_inputs, x.device)


_workloads = partial(helpers.make_workloads, AXES, "LN_B{batch}_S{seq_len}_D{hidden_dim}".format)
_small = partial(helpers.make_workloads, AXES, "S{seq_len}_D{hidden_dim}".format, "float32")


OPERATOR = Operator(
    name="layer_norm",
    title="Layer Normalization",
    axes=AXES,
    workload_sets={
        # Sizes of huggingface/kernels-benchmarks.
        "default": _workloads(
            "bfloat16", "", [(16, seq_len, columns) for seq_len in (2048, 4096) for columns in (4096, 8192)]
        ),
        "large": _workloads("bfloat16", "", ((1, 65536, 4096),)),
        # One token, a few, and a small batch: a decoding step.
        "decode": _workloads("bfloat16", "", [(tokens, 1, 4096) for tokens in (1, 8, 64)]),
        "cpu": _small("cpu_", [(1, seq_len, 1024) for seq_len in (128, 256, 512)]),
        "smoke": _small("smoke_", ((2, 32, 256),)),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: FLOPS_PER_ELEMENT * inputs[0].numel(),
    slices=helpers.batch_slices,
    edge_cases=edge_cases,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, batch=4, seq_len=64),
    nonfinite=helpers.any_number(0),
    gradients=(0, 1, 2),
    parameters=(1, 2),
)
