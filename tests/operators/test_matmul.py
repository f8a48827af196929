"""Linear layers: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable

import pytest
import torch
from implementations import assert_correct, code_of, counted, function_of, judge, smoke_workload, without_rest
from torch import Tensor

from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import Operator, find_operator

OPERATOR: Operator = find_operator("matmul")

GROUPS = ("Linear", "Linear with bias")
DTYPES = ("float32", "bfloat16", "float16")

INTERPRETED = """
from cell import triton_matmul
from kernels_bench_tools.measure.modes import in_mode, timed_function

operator = find_operator("matmul")
with torch.no_grad():
    for workload in operator.workloads("smoke")[-1:]:
        sized = replace(workload, dtype="float16")
        judge(operator, sized, triton_matmul)
    cell.GROUP, cell._tile = 2, lambda tokens, dtype: (16, 64, 128, 4, 3)  # several groups of tiles
    backward = in_mode(operator, "bwd")
    for workload in backward.workloads("smoke")[-1:]:
        sized = replace(workload, axes={**workload.axes, "tokens": 70})
        function = timed_function(operator.for_workload(workload), triton_matmul, "bwd").call
        judge(backward, sized, function)
"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
def test_the_baseline_is_correct_in_every_dtype(group: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, group, dtype, function_of("matmul", "torch_matmul")), edge_cases=9)


WRONG: dict[str, Callable[..., Tensor]] = {
    "all zero": lambda x, weight, bias: x.new_zeros(x.shape[0], weight.shape[0]),
    "no bias": lambda x, weight, bias: x @ weight.t(),
    "a column left out": lambda x, weight, bias: x[:, :-1] @ weight[:, :-1].t() + bias,
    "what follows whole tiles of 128 rows": lambda x, weight, bias: without_rest(
        x @ weight.t() + bias, 128, axis=0
    ),
    "what follows whole groups of tiles": lambda x, weight, bias: without_rest(
        x @ weight.t() + bias, 1024, axis=0
    ),
    "rounded to FP8": lambda x, weight, bias: x.to(torch.float8_e4m3fn).to(x.dtype) @ weight.t() + bias,
    "memory read by rows": lambda x, weight, bias: (
        x @ weight.as_strided(weight.shape, (weight.shape[1], 1)).t() + bias
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_product_is_incorrect(wrong: str) -> None:
    assert not judge(OPERATOR, "Linear with bias", "bfloat16", WRONG[wrong]).ok


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    read, written, flops = counted(OPERATOR, smoke_workload(OPERATOR, "Linear with bias", "bfloat16"))

    assert read == 2 * (16 * 128 + 192 * 128 + 192)
    assert written == 2 * 16 * 192
    assert flops == 2 * 16 * 128 * 192


@pytest.mark.parametrize("group", GROUPS)
def test_gradients_of_torch_are_correct(group: str) -> None:
    backward = in_mode(OPERATOR, "bwd")
    (workload,) = (one for one in backward.workloads("smoke") if one.group == group)
    function = timed_function(OPERATOR.for_workload(workload), OPERATOR.reference, "bwd").call

    assert check(backward, workload, function, backward.for_workload(workload).inputs(workload, "cpu", 0)).ok


def test_our_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("matmul", "triton_matmul"), INTERPRETED)
