"""Cross entropy of a linear layer, the last two operations of a language model in training, with or without gradients."""

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
    Outputs,
    Tolerance,
    Workload,
    one_slice,
    product_tolerance,
)
from kernels_bench_tools.operators.cross_entropy import (
    FLOAT32_TOLERANCE,
    GROUPS,
    IGNORED,
    MOST_SCALE,
    losses,
    losses_and_gradients,
)

AXES = ("function", "tokens", "hidden_dim", "vocabulary")
PREFIXES = {"forward": "LCE", "gradients": "LCEgrad"}
LOGITS_AT_ONCE = 1 << 28
"""That the reference computes at a time: 2 GB in float64."""
ODD_SIZES = ((5, 96, 1000), (3, 40, 4099), (1, 33, 2305))


def linear_losses(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return the losses, (tokens,), of the logits ``x @ weight.T``; ``weight`` is (vocabulary, hidden_dim)."""
    return losses(functional.linear(x, weight), target)


def linear_losses_and_gradients(
    x: Tensor, weight: Tensor, target: Tensor, _gradients: bool = True
) -> Outputs:
    """Return the losses, and the gradients of their sum with respect to ``x`` and ``weight``."""
    loss, logits = losses_and_gradients(functional.linear(x, weight), target)
    return loss, logits @ weight, logits.t() @ x


def reference(x: Tensor, weight: Tensor, target: Tensor, _gradients: bool = True) -> Outputs:
    """Return the same, for some tokens at a time: the logits of all would need much memory in float64."""
    parts = helpers.parts(len(x), len(weight), LOGITS_AT_ONCE)
    found = [linear_losses_and_gradients(x[part], weight, target[part]) for part in parts]
    loss, of_x, of_weight = zip(*found, strict=True)
    return torch.cat(loss), torch.cat(of_x), sum(of_weight[1:], of_weight[0])


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``x``, ``weight`` and ``target``; for the group with gradients, also ``True``.

    The logits of a token have a standard deviation of 1 to ``MOST_SCALE``, as those of :mod:`.cross_entropy`. Both gradients have
    values around 0.1.
    """
    tokens, hidden, vocabulary = (int(workload.axes[axis]) for axis in AXES[1:])
    shapes = ((tokens, hidden), (vocabulary, hidden))
    x, weight = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    target = torch.randint(vocabulary, (tokens,), generator=generator, device=device)
    scale = 1 + (MOST_SCALE - 1) * torch.rand((tokens, 1), generator=generator, device=device)
    found = x.mul_(scale * (8 * hidden**-0.5)), weight.mul_(1 / 8), target
    return (*found, True) if workload.axes["function"] == "gradients" else found


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, weight, target, *rest = inputs
    odd_rows = torch.arange(len(x), device=x.device) % 2
    if not rest:  # exp overflows unless the maximum is subtracted; gradients magnify how logits are rounded
        yield "large logits", (x * 8, weight, target)
    yield "equal logits", (torch.zeros_like(x), weight, target, *rest)
    yield "ignored tokens", (x, weight, torch.where(odd_rows == 0, IGNORED, target), *rest)
    yield "only ignored tokens", (x, weight, torch.full_like(target, IGNORED), *rest)
    yield "first and last class", (x, weight, odd_rows * (len(weight) - 1), *rest)
    yield "column-major", (helpers.transposed(x), weight, target, *rest)
    yield "column-major weights", (x, helpers.transposed(weight), target, *rest)
    yield "padded rows", (helpers.padded_rows(x), helpers.padded_rows(weight), target, *rest)
    yield from helpers.odd_shapes(workload, AXES[1:], ODD_SIZES, make_inputs, x.device)


def loss_tolerance(dtype: torch.dtype) -> Tolerance:
    """Allow the rounding of logits up to 32 to their type, which changes a loss by as much."""
    eps = torch.finfo(dtype).eps
    return Tolerance(rtol=max(2 * eps, FLOAT32_TOLERANCE.rtol), atol=max(8 * eps, FLOAT32_TOLERANCE.atol))


def gradient_tolerance(dtype: torch.dtype) -> Tolerance:
    """Allow the same, and limit the mean error, so that no part of a gradient can be left out."""
    mean = product_tolerance(dtype).mean
    error = 4 * torch.finfo(dtype).eps if torch.finfo(dtype).bits <= 16 else 2e-5
    return Tolerance(rtol=error, atol=error, mean=mean)


def _flops(inputs: Inputs) -> int:
    return int(2 * inputs[0].numel() * len(inputs[1]))  # of the product: the rest is one in a thousand


_name = helpers.named(PREFIXES, "T{tokens}_D{hidden_dim}_V{vocabulary}")
_workloads = partial(helpers.make_workloads, AXES, _name, groups=GROUPS)
_LOSS = Output("loss", "float32", loss_tolerance, lambda inputs: inputs[2].shape)
_OF_WEIGHT = Output("weight_gradient", "weight", shape=lambda inputs: inputs[1].shape)

OPERATOR = Operator(
    name="linear_cross_entropy",
    title="Linear Cross Entropy",
    axes=AXES,
    workload_sets={
        # Llama-2-7B, Llama-3.1-8B and Qwen3-8B.
        "default": _workloads(
            "bfloat16", "", ((4096, 4096, 32000), (4096, 4096, 128256), (4096, 4096, 151936))
        ),
        "large": _workloads("bfloat16", "", ((16384, 4096, 128256),)),
        "cpu": _workloads("float32", "cpu_", ((64, 256, 8192),)),
        "smoke": _workloads("float32", "smoke_", ((8, 32, 1000),)),
    },
    inputs=make_inputs,
    reference=linear_losses,
    flops=_flops,
    outputs=(_LOSS,),
    # A vocabulary is up to 37 times as large as a row.
    slices=helpers.sliced(0, None, 0, into=0, times=1 / 4),
    edge_cases=edge_cases,
    tolerance=gradient_tolerance,
    baseline=linear_losses,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, tokens=64, hidden_dim=512, vocabulary=8192),
    multiples={"hidden_dim": 8},  # 16 bytes
    parameters=(1,),
    variants={
        GROUPS["gradients"]: {
            "outputs": (_LOSS, Output("x_gradient"), _OF_WEIGHT),
            "reference": reference,
            "slices": one_slice,
            "baseline": linear_losses_and_gradients,
            "flops": lambda inputs: 3 * _flops(inputs),
        }
    },
)
