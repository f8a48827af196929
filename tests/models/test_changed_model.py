"""A whole model of transformers that a function changes, beside the model itself."""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_models import HubNorm, measured, request, with_kernels
from kernels import Mode
from torch import Tensor, nn

from kernels_bench_tools.hub.layer import HubLayer
from kernels_bench_tools.models.changed_model import ChangedModel
from kernels_bench_tools.models.effect import run_model
from kernels_bench_tools.models.transformers_model import transformers_model
from kernels_bench_tools.records.build import CellContext
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Status


class WrongNorm(nn.Module):
    """One that forgets the weight."""

    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.rms_norm(hidden_states, hidden_states.shape[-1:], None, self.variance_epsilon)


KEPT: list[Tensor] = []


class KeepingNorm(nn.Module):
    """One that keeps the first weight that it gets."""

    variance_epsilon: float
    weight: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        KEPT.append(self.weight)
        return nn.functional.rms_norm(hidden_states, KEPT[0].shape, KEPT[0], self.variance_epsilon)


class HubRotary(nn.Module):
    """A rotary embedding that rotates by the opposite of the opposite angle."""

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos + torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * sin for x in (q, k))


@pytest.fixture(autouse=True)
def functions_of_transformers(few_samples: None) -> Iterator[None]:
    yield
    for one in functions_of(transformers_model(request(), "cpu")):
        one.__dict__.pop("forward", None)


def functions_of(model: nn.Module) -> set[nn.Module]:
    return {one for module in model.modules() for one in getattr(module, "_kernel_funcs", {}).values()}


@pytest.mark.parametrize("norm", [WrongNorm, KeepingNorm])
def test_a_layer_that_computes_something_else_is_an_error_by_name(norm: type[nn.Module]) -> None:
    (record,) = measured(with_kernels(RMSNorm=norm), "prefill-16")

    assert record.outcome is Status.ERROR
    assert "LlamaRMSNorm computes something else with the implementation" in record.err.msg


@pytest.mark.parametrize("change", [nn.Module.half, lambda model: nn.init.zeros_(model.lm_head.weight)])
def test_a_change_of_weights_which_the_baseline_shares_is_an_error(change: Callable[[Any], Any]) -> None:
    def changed(model: Any) -> None:
        model.set_attn_implementation("eager")
        change(model)

    (record,) = measured(changed, "prefill-16")

    assert record.err.msg.startswith("the change converts or overwrites weights")


def test_a_change_of_nothing_is_an_error_with_the_versions_and_no_speedup() -> None:
    (record,) = measured(lambda model: model.set_use_kernels(True), "prefill-16")  # no kernel is for a CPU

    assert record.err.type == "NothingChanged"
    assert f"transformers {version('transformers')} and kernels {version('kernels')}" in record.err.msg


def test_transformers_own_table_finds_kernels_as_get_kernel_does() -> None:
    from transformers.integrations import (
        hub_kernels,
    )  # slow, and workers of a test run that have other tests do without

    measured(lambda model: model.set_use_kernels(True), "prefill-16")

    table = hub_kernels.get_kernel_mapping_transformers()
    layer = table["RMSNorm"]["cuda"][Mode.INFERENCE]
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
    assert changed.called(lambda: changed(input_ids=torch.ones(1, 4, dtype=torch.long))) == {
        *changed.instances
    }
    (record,) = measured(with_kernels(rotary_pos_emb=HubRotary), "prefill-16")
    assert record.outcome is Status.OK, record.err


def test_the_copy_has_the_same_weights_and_leaves_the_model_as_it_is() -> None:
    model = transformers_model(request(), "cpu")
    changed = ChangedModel(model, with_kernels(RMSNorm=HubNorm))

    theirs = dict(model.named_parameters())
    assert all(vars(module).get("forward") is None for module in model.modules())
    for path, module in changed.instances.items():
        assert module.weight is theirs[f"{path}.weight"]


def test_a_model_that_is_called_in_another_way_counts_as_one_instance() -> None:
    def wrapped(model: Any) -> Any:
        return lambda **named: model(**named)

    (record,) = measured(wrapped, "prefill-16")

    assert record.effect is not None, record.err
    assert (record.effect.replaced, record.effect.called) == (1, 1)


def test_logits_of_another_model_are_an_error() -> None:
    def doubled(model: Any) -> None:
        forward = model.forward

        def run(**named: Any) -> Any:
            output = forward(**named)
            output.logits = output.logits.roll(1, -1)
            return output

        model.forward = run

    (record,) = measured(doubled, "prefill-16")

    assert "logits differ" in record.err.msg


def test_without_a_model_the_record_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    context = CellContext(operator="transformers_models", implementation="mine")
    monkeypatch.setattr(CellContext, "load", lambda: context)

    run_model(lambda model: None, device="cpu")

    (record,) = read_records(Path("effect.jsonl"))
    assert record.outcome is Status.UNSUPPORTED
    assert "kbt effect transformers_models/mine --framework transformers" in record.err.msg
