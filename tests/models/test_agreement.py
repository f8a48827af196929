"""When the logits, gradients and experts of two passes of a model agree."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from changed_models import request
from tiny_configs import HUGGINGFACE
from torch import Tensor

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.models.agreement import (
    compare_gradients,
    compare_logits,
    compare_with_same_experts,
    keep_experts,
    untied_tokens,
)
from kernels_bench_tools.models.calls import hooked
from kernels_bench_tools.models.forward_pass import (
    PagedPass,
    TransformersPass,
    random_model,
    transformers_model,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def model_and_pass(framework: str, kind: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a tiny model with experts, and what makes a pass of it."""
    model = (transformers_model if framework else random_model)(request(kind), "cpu")
    return model, lambda run: (TransformersPass if framework else PagedPass)(run, "cpu", "prefill-64")


def routers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if "TopK" in type(module).__name__]


@torch.no_grad()
@pytest.mark.parametrize(("framework", "kind"), [("", "mixtral"), ("transformers", "qwen3_moe")])
def test_logits_are_compared_with_the_same_experts(
    monkeypatch: pytest.MonkeyPatch, framework: str, kind: str
) -> None:
    model, pass_of = model_and_pass(framework, kind)
    step = pass_of(model)
    router = type(routers_of(model)[0])
    forward = router.forward

    def choose_others(self: Any, x: Tensor) -> Any:
        *rest, experts = forward(self, x)
        others = experts.clone()
        others[::8] = (others[::8] + 1) % HUGGINGFACE[kind].get("num_experts", 4)
        return *rest, others

    def changed() -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(router, "forward", choose_others)
            return step()

    assert compare_logits(changed(), step()).data["relative_error"] > 1e-4
    found = compare_with_same_experts([model], step, changed, compare_logits)

    assert found.data["relative_error"] < 1e-6
    assert 7 / 8 <= found.data["experts"] < 1  # a pair of experts can be the same after the change


@torch.no_grad()
@pytest.mark.parametrize(("framework", "kind"), [("", "mixtral"), ("transformers", "qwen3_moe")])
def test_times_with_and_without_an_implementation_are_those_of_the_same_experts(
    framework: str, kind: str
) -> None:
    model, pass_of = model_and_pass(framework, kind)
    changed = deepcopy(model)
    weights = next(changed.parameters())
    weights.copy_(weights.flip(0))

    def experts(run: torch.nn.Module) -> Tensor:
        found: list[Tensor] = []
        with hooked(routers_of(run), after=lambda _, output: found.append(output[-1])):
            pass_of(run)()
        return torch.stack(found)

    expected, own = experts(model), experts(changed)
    with keep_experts([model, changed], pass_of(model)):
        kept = experts(changed)

    assert torch.equal(kept, expected)
    assert not torch.equal(own, expected)


def test_tokens_whose_experts_are_tied_are_known() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 1.0, 1.0], [2.0, 2.0, 1.0]])

    assert untied_tokens(logits, 2).tolist() == [True, False, True]
    assert untied_tokens(logits, 3).tolist() == [True] * 3


def test_logits_are_compared_without_ties() -> None:
    expected = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 0.0], [5.0, 0.0, 1.0]])
    found = expected.clone()
    found[1, 0] = 2.5  # was tied
    found[2, 2] = 6.0

    same = compare_logits(expected, expected)
    assert (same.data, same.beyond) == ({"relative_error": 0.0, "kl": 0.0, "top1": 1.0, "untied": 2}, "")
    assert compare_logits(found, expected).data["top1"] == 0.5
    assert compare_logits(found, expected).data["kl"] > 0
    rounded = [torch.randn(1, 256, generator=torch.Generator().manual_seed(seed)) for seed in range(64)]
    assert min(compare_logits(one * (1 + 1e-7), one).data["kl"] for one in rounded) == 0
    assert compare_logits(found, expected).beyond.startswith("logits differ by")
    assert not compare_logits(expected * 1.002, expected, 3).beyond


def test_gradients_are_compared_by_weight() -> None:
    loss, expected = torch.tensor(2.0), {"a": torch.ones(4), "b": torch.ones(1), "unused": None}
    found = {"a": torch.ones(4), "b": torch.full((1,), 1.5), "unused": None}

    same = compare_gradients((loss, expected), (loss, expected))
    other = compare_gradients((loss, found), (loss, expected))

    assert (same.data, same.beyond) == ({"loss": 0.0, "gradients": 0.0, "worst_gradient": 0.0}, "")
    assert other.data["worst_gradient"] == pytest.approx(0.5)
    assert other.data["gradients"] == pytest.approx((0.25 / 5) ** 0.5)
    assert other.beyond == "the gradient of b differs by 0.5 of its norm"
    assert compare_gradients((2.1 * loss, expected), (loss, expected)).beyond.startswith("the loss differs")
    with pytest.raises(Unsupported, match="no backward pass: b gets no gradient"):
        compare_gradients((loss, {**expected, "b": None}), (loss, expected))
    assert compare_gradients((loss, {**expected, "b": torch.tensor([float("nan")])}), (loss, expected)).beyond


def test_a_gradient_is_held_to_the_limit_of_its_own_type() -> None:
    loss, half, whole = torch.tensor(2.0), torch.ones(4, dtype=torch.bfloat16), torch.ones(4)
    expected = {"whole": whole, "half": half}

    found = compare_gradients((loss, {"whole": 1.1 * whole, "half": 1.2 * half}), (loss, expected))

    assert found.beyond == "the gradient of whole differs by 0.1 of its norm"
    assert not compare_gradients((loss, {"whole": whole, "half": 1.2 * half}), (loss, expected)).beyond
