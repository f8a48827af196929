"""How the logits, or the gradients, of a model with an implementation differ from those without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.models.baseline.L1 import TopKSoftmax
from kernels_bench_tools.models.calls import ModuleCall, hooked

LIMIT, LIMIT_FLOAT = 0.1, 1e-3
"""Largest relative error of the logits in half precision, and in float32, which add up the errors of all layers."""
EXPERTS_FACTOR = 3
"""Limit of a mixture of experts, as a multiple of that: their weights follow from logits that differ. With 32 layers as narrow as 256,
but with the gain of Mixtral-8x7B's, another rounding of RMSNorm changed the logits by 17 % of their norm, and by 9 % without
experts. A wrong module is found by itself: without one norm's weight they change by 2 %."""
GRADIENT_FACTOR, LOSS_FACTOR = 4, 0.1
"""Limits of a weight's gradient and of the loss, as multiples of those limits. A gradient has the roundings of both passes: in
bfloat16 the worst weight's differed by 1.8 to 3.7 times as much as the logits (Llama, Mixtral and Qwen3, 4 to 32 layers, another
RMSNorm), and one that is missing differs by its whole norm. The loss is a mean over all tokens, and differed by at most 1e-4."""
TIE_EPS = 2
"""Logits that differ by less, relative to the largest, are tied."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Agreement:
    data: Mapping[str, float]
    """What a record contains."""
    beyond: str = ""
    """What differs by more than roundings can cause, and by how much."""


def compare_with_same_experts(
    models: Sequence[nn.Module],
    expected: Callable[[], Result],
    found: Callable[[], Result],
    compare: Callable[[Result, Result, float], Agreement],
) -> Agreement:
    """Compare the results of two passes by ``compare(found, expected, factor)``, where a factor raises the limits.

    The second pass uses the experts of the first: rounding decides between two experts that are almost equally likely,
    and another expert changes a token more than all roundings do. How often it would choose the same is in the result.
    ``models`` are the model, and a changed copy of it if that is what the second pass calls.
    """
    routers = _routers(models)
    choices: dict[str, Tensor] = {}
    same: list[Tensor] = []

    def use(call: ModuleCall, output: Any) -> Any:
        module, path = call.module, routers[call.module]
        if path not in choices:
            choices[path] = output[-1].clone()
            return None
        experts = choices[path]
        same.append((output[-1].sort(-1).values == experts.sort(-1).values).float().mean())
        logits = call.args[0] if isinstance(module, TopKSoftmax) else output[0]
        weights = logits.softmax(-1, dtype=torch.float32).gather(-1, experts)
        if getattr(module, "renormalize", getattr(module, "norm_topk_prob", True)):
            weights = weights / weights.sum(-1, keepdim=True)
        return (*output[:-2], weights.to(output[-2].dtype), experts)

    with hooked(routers, after=use):
        wanted = expected()
        differs = compare(found(), wanted, EXPERTS_FACTOR if choices else 1)
    if not same:
        return differs
    return replace(differs, data={**differs.data, "experts": float(torch.stack(same).mean())})


def has_experts(model: nn.Module) -> bool:
    return bool(_routers([model]))


def untied_tokens(router_logits: Tensor, top_k: int) -> Tensor:
    """Return of which tokens (tokens,) the ``top_k`` experts are the same however ties are broken."""
    best = functional.pad(router_logits, (0, 1), value=-inf).topk(top_k + 1).values
    return best[:, -2] > best[:, -1]


@contextmanager
def keep_experts(models: Sequence[nn.Module], forward: Callable[[], object]) -> Iterator[None]:
    """Make each router of models return what it returned first in ``forward()``, after computing it again.

    Otherwise roundings of an implementation change the experts of some tokens, and so the sizes of the experts' products.
    """
    routers = _routers(models)
    kept: dict[str, Any] = {}
    with hooked(routers, after=lambda call, output: kept.setdefault(routers[call.module], output)):
        if routers:
            forward()
        yield


def compare_logits(found: Tensor, expected: Tensor, factor: float = 1) -> Agreement:
    """Compare logits, (tokens, vocabulary); their limit is multiplied by ``factor``.

    Returns:
        The relative error of their norm, the mean Kullback-Leibler divergence of a token's distribution (``kl``), and the
        share of equal first choices (``top1``) among tokens without a tie, of which there are ``untied``.
    """
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
    relative = (error / square) ** 0.5 if square else error
    data = {
        "relative_error": relative,
        "kl": max(divergence / len(expected), 0.0),  # rounding alone makes it negative
        "top1": same / clear if clear else 1.0,
        "untied": clear,
    }
    return Agreement(
        data, "" if relative <= factor * _limit(found) else f"logits differ by {relative:.2g} of their norm"
    )


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-30))


def error_of_parts(found: Tensor, expected: Tensor) -> float:
    """Return the largest error of a row or column: of one index of an axis, relative to its norm or to the usual one.

    One of 8192 rows that is wrong changes the norm of all by 1.1 %, which is less than half precision allows.
    """
    worst = 0.0
    if not expected.numel():
        return worst
    both = [values.float() for values in (found - expected, expected)]
    for axis in range(expected.dim()):
        errors, norms = (values.movedim(axis, 0).flatten(1).norm(dim=1) for values in both)
        usual = norms.square().mean().sqrt().clamp_min(1e-30)
        worst = max(worst, float((errors / norms.clamp_min(usual)).max()))
    return worst


Trained = tuple[Tensor, Mapping[str, Tensor | None]]
"""A loss, and the gradients of weights by name."""


def compare_gradients(found: Trained, expected: Trained, factor: float = 1) -> Agreement:
    """Compare what two training passes leave; limits are multiplied by ``factor``.

    Returns:
        The relative error of the loss (``loss``), of the norm of all gradients (``gradients``), and of that of the weight where it
        is largest, compared with its limit (``worst_gradient``).

    Raises:
        Unsupported: A weight has no gradient.
    """
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    errors: dict[str, float] = {}
    limits: dict[str, float] = {}
    error = square = 0.0
    for name, theirs in expected_gradients.items():
        if theirs is None:
            continue
        if (ours := gradients[name]) is None:
            raise Unsupported(f"has no backward pass: {name} gets no gradient")
        norm, differs = theirs.float().norm(), (ours.float() - theirs.float()).norm()
        errors[name] = float((differs / norm.clamp_min(1e-30)).nan_to_num(inf))
        limits[name] = factor * _limit(theirs)
        error, square = error + float(differs) ** 2, square + float(norm) ** 2
    worst = max(errors, key=lambda name: errors[name] / limits[name])
    of_loss = float(abs(loss - expected_loss) / abs(expected_loss))
    beyond = ""
    if not of_loss <= LOSS_FACTOR * max(limits.values()):
        beyond = f"the loss differs by {of_loss:.2g} of its value"
    elif errors[worst] > GRADIENT_FACTOR * limits[worst]:
        beyond = f"the gradient of {worst} differs by {errors[worst]:.2g} of its norm"
    data = {"loss": of_loss, "gradients": (error / square) ** 0.5, "worst_gradient": errors[worst]}
    return Agreement(data, beyond)


def _limit(computed: Tensor) -> float:
    """Return the largest relative error of what has this type."""
    return LIMIT if torch.finfo(computed.dtype).bits < 32 else LIMIT_FLOAT


def _routers(models: Sequence[nn.Module]) -> dict[nn.Module, str]:
    """Return the modules that choose experts, with their paths; their outputs end with weights and numbers of experts."""
    return {
        module: path
        for model in models
        for path, module in model.named_modules()
        if isinstance(module, TopKSoftmax) or type(module).__name__.endswith("TopKRouter")
    }
