"""Cross entropy of logits and target classes, one loss per token; optionally with the gradient of the logits."""

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
    dtype_tolerance,
)

AXES = ("function", "tokens", "vocabulary")
GROUPS = {"forward": "Forward", "gradients": "Forward with gradients"}
PREFIXES = {"forward": "CE", "gradients": "CEgrad"}
IGNORED = -100
"""The target of tokens with loss 0 and no gradient, as in torch."""
MOST_SCALE = 4.0
FLOAT32_TOLERANCE = dtype_tolerance(torch.float32)
FORWARD_FLOPS, GRADIENT_FLOPS = 4, 3
"""Per logit: maximum, difference, exponential, sum; for the gradient: difference, exponential, target."""
ODD_SIZES = ((5, 1000), (3, 32771), (1, 2305))


def losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return ``log(sum(exp(logits))) - logits[target]`` of (tokens, vocabulary) for each int64 target, 0 for -100."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide, target, reduction="none", ignore_index=IGNORED)


def losses_and_gradients(logits: Tensor, target: Tensor, _gradients: bool = True) -> Outputs:
    """Return the losses, and the gradient of their sum: ``softmax(logits)`` minus 1 at the target."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    counted = target != IGNORED
    gradient = wide.log_softmax(-1).exp()  # like torch's backward pass
    row = torch.arange(len(target), device=target.device)
    gradient[row, target.clamp(min=0)] -= 1
    return losses(logits, target), (gradient * counted[:, None]).to(logits.dtype)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``logits`` and ``target``; for the group with gradients, also ``True``.

    Rows have standard deviations of 1 to ``MOST_SCALE``, so that few logits decide the sum of a row. If all were 1, the sum
    of 32000 exponentials would be known within 0.7 %, and half-precision losses would be right without any of the logits.
    No target is its row's largest logit: where a probability is almost 1, torch rounds it to 1 in half precision, and the
    loss and its gradient to 0.
    """
    tokens, vocabulary = int(workload.axes["tokens"]), int(workload.axes["vocabulary"])
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (tokens, vocabulary)
    logits = torch.randn(shape, generator=generator, device=device, dtype=workload.torch_dtype)
    target = torch.randint(vocabulary, (tokens,), generator=generator, device=device)
    scale = 1 + (MOST_SCALE - 1) * torch.rand((tokens, 1), generator=generator, device=device)
    logits.mul_(scale)
    target = torch.where(target == logits.argmax(-1), (target + 1) % vocabulary, target)
    return (logits, target, True) if workload.axes["function"] == "gradients" else (logits, target)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, target, *rest = inputs
    last = x.shape[1] - 1
    ascending = torch.arange(last + 1, device=x.device) * (64 / (last + 1)) - 32
    yield "large logits", (x * 100, target, *rest)  # exp overflows unless the maximum is subtracted
    yield "ascending logits", (x + ascending.to(x.dtype), target, *rest)  # the maximum comes last
    yield "equal logits", (helpers.constant_rows(x), target, *rest)
    yield "spikes", (helpers.spikes(x), target, *rest)
    odd_rows = torch.arange(len(x), device=x.device) % 2
    yield "ignored tokens", (x, torch.where(odd_rows == 0, IGNORED, target), *rest)
    yield "first and last class", (x, odd_rows * last, *rest)
    unused = x.clone()
    some = last // 16 + 1
    # A vocabulary padded to a round number, and one that begins with what may not follow: tiles without a maximum.
    unused[:, -some:] = unused[:, :some] = float("-inf")
    yield "unused classes", (unused, target.clamp(some, last - some), *rest)
    yield "column-major", (helpers.transposed(x), target, *rest)
    yield "padded rows", (helpers.padded_rows(x), target, *rest)
    yield from helpers.odd_shapes(workload, AXES[1:], ODD_SIZES, make_inputs, x.device)


def loss_tolerance(dtype: torch.dtype) -> Tolerance:
    """Allow one rounding of log-probabilities to the logits' type, and one of the logarithm of a row's sum, as in torch.

    The second is up to 4 eps between 8 and 16, however small the loss is.
    """
    eps = torch.finfo(dtype).eps
    return Tolerance(rtol=max(eps, FLOAT32_TOLERANCE.rtol), atol=max(4 * eps, FLOAT32_TOLERANCE.atol))


def gradient_tolerance(dtype: torch.dtype) -> Tolerance:
    """Allow a relative error and almost no absolute one: probabilities are around 1 / vocabulary.

    Torch exponentiates log-probabilities in the logits' type: rounding one of -32 changes the result by
    8 eps, and roundings of the loss and of the result add to it.
    """
    return Tolerance(
        rtol=max(10 * torch.finfo(dtype).eps, FLOAT32_TOLERANCE.rtol),
        atol=6e-8 if dtype == torch.float16 else 1e-10,
    )


_name = helpers.named(PREFIXES, "T{tokens}_V{vocabulary}")
_workloads = partial(helpers.make_workloads, AXES, _name, groups=GROUPS)


_LOSS = Output("loss", "float32", loss_tolerance, lambda inputs: inputs[1].shape)

OPERATOR = Operator(
    name="cross_entropy",
    title="Cross Entropy",
    axes=AXES,
    workload_sets={
        # The vocabularies of Llama 2 and 3.
        "default": _workloads("bfloat16", "", ((4096, 32000), (4096, 128256))),
        "large": _workloads("bfloat16", "", ((16384, 128256),)),
        # Sizes and dtype of TrainScale.
        "trainscale": _workloads("float16", "trainscale_", ((4096, 128000), (16384, 128000))),
        "cpu": _workloads("float32", "cpu_", ((64, 8192),)),
        "smoke": _workloads("float32", "smoke_", ((8, 1000),)),
    },
    inputs=make_inputs,
    reference=losses,
    flops=lambda inputs: FORWARD_FLOPS * inputs[0].numel(),
    outputs=(_LOSS,),
    slices=helpers.row_slices,
    edge_cases=edge_cases,
    tolerance=gradient_tolerance,
    baseline=losses,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, tokens=64),
    nonfinite=helpers.any_number(0),
    gradients=(0,),
    gradient_slices=helpers.row_slices,
    backward_flops=GRADIENT_FLOPS / FORWARD_FLOPS,
    variants={
        GROUPS["gradients"]: {
            "outputs": (_LOSS, Output("gradient")),
            "reference": losses_and_gradients,
            "baseline": losses_and_gradients,
            "flops": lambda inputs: (FORWARD_FLOPS + GRADIENT_FLOPS) * inputs[0].numel(),
            "gradients": (),
        }
    },
)
