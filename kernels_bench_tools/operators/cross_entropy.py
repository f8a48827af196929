"""Cross entropy of logits and target classes, one loss for each token; also with the gradient of the logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.inputs import constant_rows, padded_rows, spikes, transposed
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Outputs, Tolerance, Workload
from kernels_bench_tools.measure.operator import dtype_tolerance as usual
from kernels_bench_tools.measure.parts import some_rows_at_a_time, with_at_most

AXES = ("function", "tokens", "vocabulary")
GROUPS = {"forward": "Forward", "gradients": "Forward with gradients"}
PREFIXES = {"forward": "CE", "gradients": "CEgrad"}
IGNORED = -100
"""A target that stands for no class: its token has the loss 0, and no gradient."""
FORWARD_FLOPS, GRADIENT_FLOPS = 4, 3
"""For each logit: maximum, difference, exponential and sum; then difference, exponential, and the target's 1."""
MOST_TOKENS_TO_JUDGE = 64
ODD_SIZES = ((5, 1000), (3, 32771), (1, 2305))

Sizes = tuple[tuple[int, int], ...]


def losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return ``log(sum(exp(logits))) - logits[target]`` for each token, in float32 or better; 0 where ignored.

    Args:
        logits: (tokens, vocabulary).
        target: (tokens), int64: classes, or -100.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide, target, reduction="none", ignore_index=IGNORED)


def losses_and_gradients(logits: Tensor, target: Tensor, _gradients: bool = True) -> Outputs:
    """Return the losses, and the gradient of their sum: ``softmax(logits)``, less 1 at the target."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    told = target != IGNORED
    gradient = wide.log_softmax(-1).exp()  # as torch's own backward pass has it
    row = torch.arange(len(target), device=target.device)
    gradient[row, target.clamp(min=0)] -= 1
    return losses(logits, target), (gradient * told[:, None]).to(logits.dtype)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``logits`` and ``target``; for the other group, also ``True``: gradients are wanted."""
    tokens, vocabulary = int(workload.axes["tokens"]), int(workload.axes["vocabulary"])
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (tokens, vocabulary)
    logits = torch.randn(shape, generator=generator, device=device, dtype=workload.torch_dtype)
    target = torch.randint(vocabulary, (tokens,), generator=generator, device=device)
    return (logits, target, True) if workload.axes["function"] == "gradients" else (logits, target)


def hard_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs that a careless kernel gets wrong, though ordinary ones come out right.

    Together with the workload they have seven layouts: torch.compile makes a kernel for each and keeps 8.
    """
    x, target, *rest = inputs
    last = x.shape[1] - 1
    ascending = torch.arange(last + 1, device=x.device) * (64 / (last + 1)) - 32
    yield "large logits", (x * 100, target, *rest)  # exp overflows unless the largest one is taken off first
    yield "ascending logits", (x + ascending.to(x.dtype), target, *rest)  # the largest comes last
    yield "equal logits", (constant_rows(x), target, *rest)
    yield "spikes", (spikes(x), target, *rest)
    yield (
        "ignored tokens",
        (x, torch.where(torch.arange(len(x), device=x.device) % 2 == 0, IGNORED, target), *rest),
    )
    yield "first and last class", (x, torch.arange(len(x), device=x.device) % 2 * last, *rest)
    unused = x.clone()
    unused[:, -(last // 16) - 1 :] = float("-inf")  # a vocabulary padded to a round number
    yield "unused classes", (unused, target.clamp(max=last - last // 16 - 1), *rest)
    yield "column-major", (transposed(x), target, *rest)
    yield "padded rows", (padded_rows(x), target, *rest)
    for number, (tokens, vocabulary) in enumerate(ODD_SIZES):
        odd = replace(workload, axes={**workload.axes, "tokens": tokens, "vocabulary": vocabulary})
        yield f"shape {tokens}x{vocabulary}", make_inputs(odd, x.device, workload.seed + 1000 + number)


def loss_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return what is allowed in a loss: one rounding of log-probabilities to the logits' type, as torch does it."""
    return Tolerance(
        rtol=max(torch.finfo(dtype).eps, usual(torch.float32).rtol), atol=usual(torch.float32).atol
    )


def gradient_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return a relative error, and almost no absolute one: probabilities are around 1 / vocabulary.

    Torch takes the exponential of log-probabilities in the type of the logits; down to -32, one rounding of them
    changes it by 8 eps.
    """
    return Tolerance(
        rtol=max(8 * torch.finfo(dtype).eps, usual(torch.float32).rtol),
        atol=6e-8 if dtype == torch.float16 else 1e-10,
    )


def fewer_tokens(workload: Workload) -> Workload:
    """Return the workload with as large a vocabulary, and at most 64 tokens."""
    return with_at_most(workload, tokens=MOST_TOKENS_TO_JUDGE)


def _workloads(dtype: str, prefix: str, sizes: Sizes) -> list[Workload]:
    made = []
    for function, group in GROUPS.items():
        for tokens, vocabulary in sizes:
            axes: dict[str, Any] = dict(zip(AXES, (function, tokens, vocabulary), strict=True))
            name = f"{prefix}{PREFIXES[function]}_T{tokens}_V{vocabulary}"
            made.append(Workload(name=name, axes=axes, dtype=dtype, group=group))
    return made


_LOSS = Output("loss", "float32", loss_tolerance)

OPERATOR = Operator(
    name="cross_entropy",
    title="Cross Entropy",
    axes=AXES,
    workload_sets={
        # The vocabularies of Llama 2 and 3.
        "default": _workloads("bfloat16", "", ((4096, 32000), (4096, 128256))),
        "large": _workloads("bfloat16", "", ((16384, 128256),)),
        # TrainScale's, in its type.
        "trainscale": _workloads("float16", "trainscale_", ((4096, 128000), (16384, 128000))),
        "cpu": _workloads("float32", "cpu_", ((64, 8192),)),
        "smoke": _workloads("float32", "smoke_", ((8, 1000),)),
    },
    inputs=make_inputs,
    reference=losses,
    flops=lambda inputs: FORWARD_FLOPS * inputs[0].numel(),
    outputs=(_LOSS,),
    pieces=some_rows_at_a_time,
    cases=hard_cases,
    tolerance=gradient_tolerance,
    baseline=losses,  # called with the workload's own type
    smaller=fewer_tokens,
    gradients=(0,),
    gradient_pieces=some_rows_at_a_time,
    backward_flops=GRADIENT_FLOPS / FORWARD_FLOPS,
    variants={
        GROUPS["gradients"]: {
            "outputs": (_LOSS, Output("gradient")),
            "reference": losses_and_gradients,
            "baseline": losses_and_gradients,
            "flops": lambda inputs: (FORWARD_FLOPS + GRADIENT_FLOPS) * inputs[0].numel(),
            "in_place": (0,),  # where memory is short, gradients take the logits' place
            "gradients": (),
        }
    },
)
