"""Training passes of whole models of transformers: forward and backward, with and without a change."""

from typing import Any

import pytest
import torch
from changed_models import LAYERS, NORMS, HubNorm, InferenceNorm, measured, with_kernels
from torch import Tensor, nn

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.models.agreement import compare_gradients
from kernels_bench_tools.records.record import Status

pytestmark = [pytest.mark.usefixtures("few_samples"), pytest.mark.filterwarnings("ignore")]
pytest.importorskip("transformers")
ROTARY = {"rotary_pos_emb": 1}


class HubSiLU(nn.Module):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch
        return input * input.sigmoid()


class SmallerGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 0.9 * gradient


class WrongBackward(HubNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        normalized = nn.functional.rms_norm(
            hidden_states, self.weight.shape, self.weight, self.variance_epsilon
        )
        return SmallerGradient.apply(normalized)


class NoBackward(HubNorm):
    @torch.no_grad()
    def forward(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


@pytest.mark.parametrize(
    ("kind", "norms"), [("llama", NORMS), ("qwen3", NORMS + 2 * LAYERS), ("mixtral", NORMS)]
)
def test_loss_and_gradients_are_equal_with_layers_of_the_hub_which_are_counted_in_each_phase(
    kind: str, norms: int
) -> None:
    change = with_kernels(RMSNorm=HubNorm)
    records = measured(change, "train-16", "prefill-16", "decode-2", kind=kind)

    assert [one.err for one in records if one.err] == []
    effects = [one.effect for one in records if one.effect]
    assert [one.phase for one in effects] == ["prefill-16", "decode-2", "train-16"]
    for one in effects:
        assert (one.level, one.module, one.replaced, one.called) == (4, "eager", norms, norms)
        assert (one.missing, one.predicted_ms) == ([], None)
        assert one.kept == {"SiLU": LAYERS} | ROTARY
    prefill, decode, trained = (one.corr for one in records)
    assert max(prefill["relative_error"], decode["relative_error"]) < 1e-5
    assert max(trained["loss"], trained["gradients"], trained["worst_gradient"]) < 1e-5
    assert ("experts" in trained) is (kind == "mixtral")


def test_a_layer_without_a_backward_pass_is_replaced_for_inference_only() -> None:
    prefill, trained = measured(with_kernels(RMSNorm=InferenceNorm, SiLU=HubSiLU), "prefill-16", "train-16")

    assert prefill.effect is not None, prefill.err
    assert (prefill.effect.replaced, prefill.effect.kept) == (NORMS + LAYERS, ROTARY)
    assert trained.effect is not None, trained.err
    assert (trained.effect.replaced, trained.effect.kept) == (LAYERS, {"RMSNorm": NORMS} | ROTARY)


def test_nothing_replaced_in_training_is_an_error() -> None:
    _, trained = measured(with_kernels(RMSNorm=InferenceNorm), "prefill-16", "train-16")

    assert trained.outcome is Status.ERROR
    assert trained.err.type == "NothingChanged"


@pytest.mark.parametrize(
    ("layer", "status", "message"),
    [
        (
            WrongBackward,
            Status.ERROR,
            "the gradient of model.layers.0.input_layernorm.weight differs by 0.32",
        ),
        (
            NoBackward,
            Status.UNSUPPORTED,
            "no backward pass: model.layers.0.self_attn.q_proj.weight gets no gradient",
        ),
    ],
)
def test_another_gradient_and_a_missing_one_are_named(
    layer: type[nn.Module], status: Status, message: str
) -> None:
    (record,) = measured(with_kernels(RMSNorm=layer), "train-16")

    assert record.outcome is status
    assert message in record.err.msg


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
