"""Whole models: what is right, what is called wrong, and what is counted."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from kernels_bench_tools.measure.correctness.compare import compare, require_correct
from kernels_bench_tools.measure.correctness.errors import WrongResultError
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, find_operator
from kernels_bench_tools.models.baseline.L1 import RMSNorm, RotaryEmbedding
from kernels_bench_tools.models.baseline.L3 import LlamaDecoderLayer
from kernels_bench_tools.operators import causal_lm
from kernels_bench_tools.operators.causal_lm import model_with
from kernels_bench_tools.operators.decoder_layer import layer_with

OPERATOR: Operator = find_operator("causal_lm").adapted(in_place=True)

PREFILL, DECODE = 0, 1
"""Numbers of the workloads of the smoke set."""
DEPTH = 32


def smoke(number: int, dtype: str = "bfloat16", **axes: Any) -> Workload:
    found = OPERATOR.workloads("smoke")[number]
    return replace(found, dtype=dtype, axes={**found.axes, **axes})


def in_one_layer(kind: type[nn.Module], wrong: Callable[..., Any]) -> Callable[..., Any]:
    """Return the pass in which the last module of a class computes something else."""

    def call(*inputs: Any) -> Any:
        modules = [one for one in inputs[6].modules() if type(one) is kind]
        count = [0]

        def forward(module: nn.Module, *given: Any) -> Any:
            count[0] += 1
            return (wrong if count[0] == calls else kind.forward)(module, *given)

        # All layers share one rotary embedding.
        calls = len(inputs[6].model.layers) if kind is RotaryEmbedding else len(modules)
        return model_with({kind: forward})(*inputs)

    return call


def without_weight(module: RMSNorm, x: Any, residual: Any = None) -> Any:
    plain = RMSNorm(x.shape[-1], module.variance_epsilon).to(x.dtype)
    return plain(x, residual)


def skipped(_: LlamaDecoderLayer, positions: Any, hidden: Any, residual: Any) -> Any:
    return hidden, residual


def moved_by_one(module: RotaryEmbedding, positions: Any, *heads: Any) -> Any:
    return RotaryEmbedding.forward(module, (positions - 1).clamp(min=0), *heads)


WRONG: dict[str, Callable[..., Any]] = {
    "a layer is left out": in_one_layer(LlamaDecoderLayer, skipped),
    "a norm has no weight": in_one_layer(RMSNorm, without_weight),
    "positions of a layer are off by one": in_one_layer(RotaryEmbedding, moved_by_one),
}


@pytest.fixture(scope="module", params=[PREFILL, DECODE], ids=["prefill", "decode"])
def deep(request: pytest.FixtureRequest) -> Inputs:
    """As deep as a large model, where rounding errors have added up."""
    return OPERATOR.inputs(smoke(request.param, layers=DEPTH), "cpu", 0)


def of_copy(inputs: Inputs, function: Callable[..., Any]) -> Any:
    with torch.no_grad():
        return function(inputs[0].clone(), *inputs[1:])


def test_rounding_in_a_deep_model_is_within_the_tolerance(deep: Inputs) -> None:
    compare(of_copy(deep, model_with()), OPERATOR, deep).require_correct()


@pytest.mark.parametrize("wrong", WRONG)
def test_a_deep_model_with_one_wrong_module_is_incorrect(deep: Inputs, wrong: str) -> None:
    output = of_copy(deep, WRONG[wrong])

    with pytest.raises(WrongResultError):
        compare(output, OPERATOR, deep).require_correct()


@pytest.mark.parametrize("part", ["proj", "mlp"])
def test_weights_of_8_bits_are_too_imprecise(part: str) -> None:
    inputs = OPERATOR.inputs(smoke(PREFILL, layers=DEPTH, hidden_dim=128), "cpu", 0)
    rounded = copy.deepcopy(inputs[6])
    for name, weight in rounded.named_parameters():
        if part in name:
            step = weight.abs().amax(1, keepdim=True).float() / 127
            weight.copy_((weight / step).round() * step)
    logits, cache = of_copy((*inputs[:6], rounded, *inputs[7:]), model_with())

    for required in (lambda *given: compare(*given).require_correct(), require_correct):
        with pytest.raises(WrongResultError, match="mean error of its output 'logits' is"):
            required((logits, cache), OPERATOR, inputs, {0})


def test_a_cache_that_is_not_written_is_incorrect(deep: Inputs) -> None:
    logits, _ = of_copy(deep, model_with())

    with pytest.raises(WrongResultError, match="kv_cache"):
        compare((logits, deep[0]), OPERATOR, deep).require_correct()


def test_sequences_are_compared_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = OPERATOR.inputs(smoke(DECODE, "float32"), "cpu", 0)
    logits, cache = OPERATOR.reference(*inputs)
    monkeypatch.setattr(causal_lm, "CACHE_AT_ONCE", 1)

    parts = list(OPERATOR.slices(inputs))
    for (rows, blocks), own in parts:
        own_logits, own_cache = OPERATOR.reference(*own)
        torch.testing.assert_close(own_logits, logits[rows])
        torch.testing.assert_close(own_cache, cache[blocks])
    assert len(parts) == 3
    compare((logits, cache), OPERATOR, inputs).require_correct()
    logits[1] += 1
    with pytest.raises(WrongResultError, match="logits"):
        compare((logits, cache), OPERATOR, inputs).require_correct()


def test_a_kernel_replaces_all_modules_of_its_class_in_a_copy() -> None:
    called = []

    def norm(module: RMSNorm, x: Any, residual: Any = None) -> Any:
        called.append(module.weight.shape[0])
        return RMSNorm.forward(module, x, residual)

    inputs = OPERATOR.inputs(smoke(DECODE), "cpu", 0)
    function = model_with({RMSNorm: norm})
    of_copy(inputs, function)
    of_copy(inputs, model_with())
    layer = find_operator("decoder_layer").adapted(in_place=True)
    layer_with({RMSNorm: norm})(*layer.inputs(layer.workloads("smoke")[DECODE], "cpu", 0))

    assert called == [*[64, 16, 16, 64] * 2, 64, *[64, 16, 16, 64]]
