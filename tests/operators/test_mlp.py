"""Feed-forward layers: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable

import pytest
import torch
from implementations import (
    IN_HALF,
    assert_correct,
    code_of,
    counted,
    function_of,
    in_8_bits,
    judge,
    smoke_workload,
    without_rest,
)
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.models.baseline.L2 import LlamaMLP
from kernels_bench_tools.operators.mlp import reference

OPERATOR: Operator = find_operator("mlp")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_is_correct(dtype: str) -> None:
    assert_correct(judge(OPERATOR, "", dtype, function_of("mlp", "torch_mlp")), edge_cases=10)


def test_the_block_of_the_models_computes_the_same() -> None:
    x, gate_up, down = OPERATOR.inputs(smoke_workload(OPERATOR, "", "float32"), "cpu", 0)
    block = LlamaMLP(64, 96)
    weights = {"gate_up_proj.weight": gate_up, "down_proj.weight": down}

    torch.testing.assert_close(functional_call(block, weights, (x,)), reference(x, gate_up, down))


def _exponential(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = functional.linear(x, gate_up).float().chunk(2, dim=-1)
    return functional.linear((gate * (gate.exp() / (1 + gate.exp())) * up).to(x.dtype), down)


def _without_strides(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    flat = (one.as_strided(one.shape, (one.shape[1], 1)) for one in (x, gate_up, down))
    return reference(*flat)


WRONG: dict[str, Callable[..., Tensor]] = {
    "gate and up swapped": lambda x, gate_up, down: reference(x, gate_up.roll(len(gate_up) // 2, 0), down),
    "gate and up interleaved": lambda x, gate_up, down: reference(
        x, gate_up.view(2, -1, x.shape[1]).transpose(0, 1).reshape(gate_up.shape), down
    ),
    "tokens after whole tiles of 128": lambda *inputs: without_rest(reference(*inputs), 128, axis=0),
    "without SiLU": lambda x, gate_up, down: functional.linear(
        torch.mul(*functional.linear(x, gate_up).chunk(2, dim=-1)), down
    ),
    "an exponential that overflows": _exponential,
    "strides ignored": _without_strides,
    "the last weights in 8 bits": lambda x, gate_up, down: reference(
        x.float(), gate_up.float(), in_8_bits(down)
    ).to(x.dtype),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_block_is_incorrect(wrong: str) -> None:
    assert not judge(OPERATOR, "", "bfloat16", WRONG[wrong]).ok


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    read, written, flops = counted(OPERATOR, smoke_workload(OPERATOR, "", "bfloat16"))

    assert read == 2 * (16 * 64 + 3 * 64 * 96)
    assert written == 2 * 16 * 64
    assert flops == 6 * 16 * 64 * 96


def test_our_kernel_is_correct_in_the_block_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("mlp", "triton_swiglu_mlp"), IN_HALF, "mlp", "triton_swiglu_mlp")
