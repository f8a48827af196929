"""A whole model of transformers that a function changes, beside the model itself: inference and training."""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_models import LAYERS, NORMS, HubNorm, InferenceNorm, measured, request, with_kernels
from kernels import Mode
from torch import Tensor, nn

from kernels_bench_tools.hub.kernel import HubLayer
from kernels_bench_tools.models.changed_model import ChangedModel
from kernels_bench_tools.models.effect import run_model
from kernels_bench_tools.models.forward_pass import transformers_model
from kernels_bench_tools.operators.recurrent.selective_scan import torch_scan
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.model import read_model_tasks
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.request import CellContext

pytestmark = pytest.mark.filterwarnings("ignore")
Change = Callable[[Any], Any]
ROTARY = {"rotary_pos_emb": 1}


class HubSiLU(nn.Module):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch
        return input * input.sigmoid()


class HubRotary(nn.Module):
    """A rotary embedding that rotates by the opposite of the opposite angle."""

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos + torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * sin for x in (q, k))


class HubScan(nn.Module):
    def forward(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: N803
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        D: Any = None,  # noqa: N803
        z: Any = None,
        delta_bias: Any = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        use_mambapy: bool = False,
        use_associative_scan: bool = False,
        **kwargs: Any,
    ) -> Any:
        return torch_scan(hidden_states, dt, A, B, C, D, z, delta_bias, None)[0]


class WithoutWeight(nn.Module):
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.rms_norm(hidden_states, hidden_states.shape[-1:], None, self.variance_epsilon)


KEPT: list[Tensor] = []


class KeepingNorm(HubNorm):
    """One that keeps the first weight that it gets."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        KEPT.append(self.weight)
        return nn.functional.rms_norm(hidden_states, KEPT[0].shape, KEPT[0], self.variance_epsilon)


class SmallerGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 0.9 * gradient


class WrongBackward(HubNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return SmallerGradient.apply(HubNorm.forward(self, hidden_states))


class NoBackward(HubNorm):
    @torch.no_grad()
    def forward(self, hidden_states: Tensor) -> Tensor:
        return HubNorm.forward(self, hidden_states)


@pytest.fixture(autouse=True)
def functions_of_transformers(few_samples: None) -> Iterator[None]:
    yield
    for one in functions_of(transformers_model(request(), "cpu")):
        one.__dict__.pop("forward", None)


def functions_of(model: nn.Module) -> set[nn.Module]:
    return {one for module in model.modules() for one in getattr(module, "_kernel_funcs", {}).values()}


def eager(change: Change) -> Change:
    def changed(model: Any) -> None:
        model.set_attn_implementation("eager")
        change(model)

    return changed


def zero_head(model: Any) -> None:
    nn.init.zeros_(model.lm_head.weight)


def other_logits(model: Any) -> None:
    forward = model.forward

    def run(**named: Any) -> Any:
        output = forward(**named)
        output.logits = output.logits.roll(1, -1)
        return output

    model.forward = run


DIFFERS = "returns a different result"
VERSIONS = f"transformers {version('transformers')} and kernels {version('kernels')}"


@pytest.mark.parametrize(
    ("change", "phase", "status", "message"),
    [
        (with_kernels(RMSNorm=WithoutWeight), "prefill-16", Status.ERROR, f"LlamaRMSNorm {DIFFERS}"),
        (with_kernels(RMSNorm=KeepingNorm), "prefill-16", Status.ERROR, f"LlamaRMSNorm {DIFFERS}"),
        (eager(nn.Module.half), "prefill-16", Status.ERROR, "the change converts or overwrites weights"),
        (eager(zero_head), "prefill-16", Status.ERROR, "the change converts or overwrites weights"),
        (other_logits, "prefill-16", Status.ERROR, "logits differ"),
        (with_kernels(RMSNorm=InferenceNorm), "train-16", Status.ERROR, VERSIONS),
        (
            with_kernels(RMSNorm=WrongBackward),
            "train-16",
            Status.ERROR,
            "gradient of model.layers.0.input_layernorm",
        ),
        (
            with_kernels(RMSNorm=NoBackward),
            "train-16",
            Status.UNSUPPORTED,
            "no backward pass: model.layers.0",
        ),
    ],
)
def test_a_change_that_computes_something_else_or_nothing_is_an_error_by_name(
    change: Change, phase: str, status: Status, message: str
) -> None:
    (record,) = measured(change, phase)

    assert record.outcome is status
    assert message in record.err.msg


@pytest.mark.parametrize(("kind", "norms"), [("qwen3", NORMS + 2 * LAYERS), ("mixtral", NORMS)])
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


def test_functions_of_a_recurrent_layer_are_replaced_or_kept_by_the_names_that_are_listed() -> None:
    records = measured(with_kernels(selective_scan_fn=HubScan), "prefill-16", "decode-2", kind="falcon_mamba")

    (error,) = [one.err for one in records if one.err]
    assert error.msg == "decode-2 calls none of the replaced modules: selective_scan_fn"
    (record,) = measured(with_kernels(selective_scan_fn=HubScan), "prefill-16", kind="falcon_mamba")
    assert record.effect is not None, record.err
    assert (record.effect.replaced, record.effect.called) == (1, 1)
    listed = read_model_tasks("falcon-mamba-7b").kernels.keys()
    assert record.effect.kept.keys() == listed - {"selective_scan_fn"}
    assert record.effect.kept["RMSNorm"] == LAYERS + 1


def test_transformers_own_table_finds_kernels_as_get_kernel_does() -> None:
    from transformers.integrations import hub_kernels  # slow

    measured(lambda model: model.set_use_kernels(True), "prefill-16")

    layer = hub_kernels.get_kernel_mapping_transformers()["RMSNorm"]["cuda"][Mode.INFERENCE]
    assert isinstance(layer, HubLayer)
    assert (layer.repo_id, layer.layer_name) == ("kernels-community/liger-kernels", "LigerRMSNorm")


def test_a_function_that_all_models_share_is_replaced_only_while_the_changed_model_runs() -> None:
    model = transformers_model(request(), "cpu")
    (rotary,) = functions_of(model)
    before = rotary.forward

    changed = ChangedModel(model, with_kernels(rotary_pos_emb=HubRotary))

    assert rotary.forward == before
    with changed.active():
        assert rotary.forward != before
    assert rotary.forward == before
    tokens = torch.ones(1, 4, dtype=torch.long)
    assert changed.called(lambda: changed(input_ids=tokens)) == changed.instances.keys()
    (record,) = measured(with_kernels(rotary_pos_emb=HubRotary), "prefill-16")
    assert record.outcome is Status.OK, record.err


def test_without_a_model_the_record_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    context = CellContext(operator="transformers_models", implementation="mine")
    monkeypatch.setattr(CellContext, "load", lambda: context)

    run_model(lambda model: None, device="cpu")

    (record,) = read_records(Path("effect.jsonl"))
    assert record.outcome is Status.UNSUPPORTED
    assert "kbt effect transformers_models/mine --framework transformers" in record.err.msg
