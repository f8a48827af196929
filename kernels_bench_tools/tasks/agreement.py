"""How the logits of a model with an implementation differ from those without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from kernels_bench_tools.tasks.baseline.L1.topk_softmax import TopKSoftmax

LIMIT, LIMIT_FLOAT = 0.1, 1e-3
"""Largest relative error of the logits in half precision, and in float32, which add up the errors of all layers."""
TIE_EPS = 2
"""Logits that differ by less, relative to the largest, are tied."""

Hook = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Agreement:
    """Differences of logits."""

    relative_error: float
    kl: float
    """Mean Kullback-Leibler divergence of a token's distribution."""
    top1: float
    """Share of equal first choices among tokens without a tie."""
    half_precision: bool
    experts: float | None = None
    """Share of equal choices of experts; None for a model without experts."""

    @property
    def within_limit(self) -> bool:
        """Whether rounding can cause the difference."""
        return self.relative_error <= (LIMIT if self.half_precision else LIMIT_FLOAT)

    def as_data(self) -> dict[str, float]:
        """Return what a record contains."""
        found = {"relative_error": self.relative_error, "kl": self.kl, "top1": self.top1}
        return found if self.experts is None else {**found, "experts": self.experts}


def compare_with_same_experts(
    model: nn.Module, expected: Callable[[], Tensor], found: Callable[[], Tensor]
) -> Agreement:
    """Compare the logits, (tokens, vocabulary), of two forward passes of a model.

    The second pass uses the experts of the first: rounding decides between two experts that are almost equally likely,
    and another expert changes a token more than all roundings do. How often it would choose the same is in the result.
    """
    if not any(map(_is_router, model.modules())):
        wanted = expected()
        return compare_logits(found(), wanted)
    choices: list[Tensor] = []
    same: list[Tensor] = []

    def note(module: nn.Module, _: Any, output: Any) -> None:
        if _is_router(module):
            choices.append(output[-1].clone())

    def use(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not _is_router(module) or len(same) == len(choices):
            return None
        experts = choices[len(same)]
        same.append((output[-1].sort(-1).values == experts.sort(-1).values).float().mean())
        logits = inputs[0] if isinstance(module, TopKSoftmax) else output[0]
        weights = logits.softmax(-1, dtype=torch.float32).gather(-1, experts)
        if getattr(module, "renormalize", getattr(module, "norm_topk_prob", True)):
            weights = weights / weights.sum(-1, keepdim=True)
        return (*output[:-2], weights.to(output[-2].dtype), experts)

    with _hook(note):
        wanted = expected()
    with _hook(use):
        differs = compare_logits(found(), wanted)
    share = float(torch.stack(same).mean()) if same else None
    return replace(differs, experts=share)


def compare_logits(found: Tensor, expected: Tensor) -> Agreement:
    """Compare logits, (tokens, vocabulary)."""
    eps = torch.finfo(expected.dtype).eps
    error = square = divergence = 0.0
    same = clear = 0
    for ours, theirs in zip(found.split(256), expected.split(256), strict=True):
        ours, theirs = ours.float(), theirs.float()
        error += float((ours - theirs).square().sum())
        square += float(theirs.square().sum())
        logs = theirs.log_softmax(-1)
        divergence += float((logs.exp() * (logs - ours.log_softmax(-1))).sum())
        first, second = theirs.topk(2, dim=-1).values.unbind(-1)
        untied = first - second > TIE_EPS * eps * first.abs()
        same += int((untied & (ours.argmax(-1) == theirs.argmax(-1))).sum())
        clear += int(untied.sum())
    return Agreement(
        relative_error=(error / square) ** 0.5 if square else error,
        kl=divergence / len(expected),
        top1=same / clear if clear else 1.0,
        half_precision=torch.finfo(found.dtype).bits < 32,
    )


def _is_router(module: nn.Module) -> bool:
    """Return whether a module chooses experts; its output ends with their weights and numbers, also in transformers."""
    return isinstance(module, TopKSoftmax) or type(module).__name__.endswith("TopKRouter")


@contextmanager
def _hook(hook: Hook) -> Iterator[None]:
    """Call a hook after each module's forward pass, also in a copy of the model."""
    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
