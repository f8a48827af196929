"""Decoder layers: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, function_of, judge_on
from torch import Tensor

from kernels_bench_tools.measure.correctness.check import Correctness
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator
from kernels_bench_tools.models.baseline.L1 import RMSNorm, RotaryEmbedding
from kernels_bench_tools.operators.decoder_layer import layer_with, torch_layer

OPERATOR: Operator = find_operator("decoder_layer").adapted(in_place=True)

INTERPRETED = """
operator = find_operator("decoder_layer").adapted(in_place=True)
with torch.no_grad():
    for workload in operator.workloads("smoke"):
        workload = replace(workload, dtype="float16")
        judge(operator, workload, cell.triton_layer)
"""
PREFILL, DECODE = 0, 1
"""Numbers of the workloads of the smoke set."""


def smoke(number: int, dtype: str = "bfloat16") -> Workload:
    return replace(OPERATOR.workloads("smoke")[number], dtype=dtype)


@torch.no_grad()
def judge(workload: Workload, function: Callable[..., Any]) -> Correctness:
    return judge_on(workload, OPERATOR, function)


# The second is a formula of its own, without the modules of the models.
@pytest.mark.parametrize("name", ["torch_layer", "torch_compiled_layer"])
@pytest.mark.parametrize("number", [PREFILL, DECODE])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_s_implementations_are_correct(name: str, number: int, dtype: str) -> None:
    verdict = judge(smoke(number, dtype), function_of("decoder_layer", name))

    assert_correct(verdict, edge_cases=4)


def test_a_layer_of_qwen2_has_a_bias() -> None:
    workload = smoke(PREFILL)
    workload = replace(workload, axes={**workload.axes, "kind": "qwen2"})

    assert judge(workload, function_of("decoder_layer", "torch_compiled_layer")).ok
    assert not judge(workload, lambda *given: torch_layer(*given[:10], None, *given[11:])).ok


def test_only_slots_of_new_tokens_change_in_the_cache() -> None:
    inputs = OPERATOR.inputs(smoke(DECODE, "float32"), "cpu", 0)
    _, _, cache = OPERATOR.reference(*inputs)

    changed = (cache != inputs[2]).flatten(3).any(-1).flatten(1)
    assert changed.nonzero()[:, 1].tolist() == 2 * sorted(inputs[4].tolist())


def with_inputs(**changed: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Return the layer, called with other values of some inputs."""
    names = ("hidden", "residual", "kv_cache", "positions", "slots", "tables", "lengths", "cos_sin")

    def call(*inputs: Any) -> Any:
        named = dict(zip(names, inputs, strict=False))
        return torch_layer(
            *(changed.get(name, lambda x: x)(x) for name, x in named.items()), *inputs[len(names) :]
        )

    return call


WRONG: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "no residual": (with_inputs(residual=lambda _: None), (PREFILL,)),
    "positions from 0": (with_inputs(positions=lambda x: x - x.min()), (DECODE,)),
    "slots in another order": (with_inputs(slots=lambda x: x.flip(0)), (PREFILL, DECODE)),
    "tables in another order": (with_inputs(tables=lambda x: x.flip(0)), (DECODE,)),
    "all slots of the blocks": (with_inputs(lengths=lambda x: x + 4), (DECODE,)),
    "a copy of the cache": (lambda *given: (*layer_on_copy(*given), given[2]), (PREFILL, DECODE)),
    "no rotation": (layer_with({RotaryEmbedding: lambda _, positions, *qk: qk}), (PREFILL, DECODE)),
}


def layer_on_copy(hidden: Tensor, residual: Tensor | None, cache: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return torch_layer(hidden, residual, cache.clone(), *rest)[:2]


@pytest.mark.parametrize(("wrong", "number"), [(name, one) for name in WRONG for one in WRONG[name][1]])
def test_a_wrong_layer_is_incorrect(wrong: str, number: int) -> None:
    assert not judge(smoke(number), WRONG[wrong][0]).ok


def test_a_kernel_replaces_all_modules_of_its_class() -> None:
    called = []

    def norm(module: RMSNorm, x: Tensor, residual: Tensor | None = None) -> Any:
        called.append(module.weight.shape)
        return RMSNorm.forward(module, x, residual)

    inputs = OPERATOR.inputs(smoke(DECODE), "cpu", 0)
    layer_with({RMSNorm: norm})(*inputs)

    assert called == [(64,), (16,), (16,), (64,)]


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    inputs = OPERATOR.inputs(smoke(DECODE), "cpu", 0)
    counted = OPERATOR.work(inputs, OPERATOR.reference(*inputs))

    matrices, vectors = 128 * 64 + 64 * 64 + 3 * 96 * 64, 2 * 64 + 2 * 16
    earlier, token = 3 * 19, 2 * 2 * 16
    indices = 8 * (3 + 3 + 9 + 3)
    assert counted.bytes_read == 2 * (3 * 64 + earlier * token + 16 + matrices + vectors) + indices
    assert counted.bytes_written == 2 * (2 * 3 * 64 + 3 * token)
    assert counted.flops == 2 * 3 * matrices + 4 * 3 * 20 * 64


def test_our_kernels_are_correct_in_the_layer_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("decoder_layer", "triton_layer"), INTERPRETED)
