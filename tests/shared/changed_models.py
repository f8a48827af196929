"""Tiny models of transformers that are measured with and without a change, and layers as kernels of the Hub have them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels import Mode, kernelize, use_kernel_mapping
from tiny_configs import HUGGINGFACE, ONLY_TRANSFORMERS
from torch import Tensor, nn

from kernels_bench_tools.measure.task import Task
from kernels_bench_tools.models.effect import measure_change
from kernels_bench_tools.records.record import Record
from kernels_bench_tools.records.request import TRANSFORMERS, CellContext, EffectRequest, Request

LAYERS = 2
NORMS = 2 * LAYERS + 1
Change = Callable[[Any], Any]


class HubNorm(nn.Module):
    """What a kernel of the Hub provides for RMSNorm."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


class InferenceNorm(HubNorm):
    """One that says that it has no backward pass."""

    has_backward = False


@dataclass(frozen=True)
class Repository:
    """What ``kernels`` loads a layer from."""

    layer: type[nn.Module]

    def load(self) -> type[nn.Module]:
        return self.layer


def with_kernels(mode: Mode | None = None, **layers: type[nn.Module]) -> Change:
    """Return what transformers' ``set_use_kernels`` does, with layers for this device instead of the Hub's."""
    mapping: Any = {name: {"cpu": Repository(layer)} for name, layer in layers.items()}

    def change(model: Any) -> None:
        chosen = mode or (Mode.TRAINING if model.training else Mode.INFERENCE)
        with use_kernel_mapping(mapping, inherit_mapping=False):
            kernelize(model, mode=chosen, device="cpu")

    return change


def request(
    kind: str = "llama", *phases: str, framework: str = TRANSFORMERS, dtype: str = "float32"
) -> EffectRequest:
    known = HUGGINGFACE | ONLY_TRANSFORMERS
    config = {**known[kind], "model_type": kind, "torch_dtype": dtype, "max_position_embeddings": 1024}
    return EffectRequest(
        model=f"tiny-{kind}", config=config, phases=[*phases], layers=LAYERS, framework=framework
    )


def measured(change: Change, *phases: str, kind: str = "llama") -> list[Record]:
    asked = request(kind, *phases)
    context = CellContext(
        operator="transformers_models", implementation="mine", request=Request(effect=asked)
    )
    task = Task(
        operator="transformers_models", workloads="", device="cpu", implementation="mine", file="effect.jsonl"
    )
    return measure_change(task, change, context, lambda _: None)
