"""Grouped matrix products: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from implementations import IN_HALF, assert_correct, code_of, counted, function_of, judge, smoke_workload
from torch import Tensor

from kernels_bench_tools.measure.operator import Operator, Workload, find_operator
from kernels_bench_tools.operators.grouped_gemm import reference

OPERATOR: Operator = find_operator("grouped_gemm")


@pytest.mark.parametrize("name", ["torch_grouped_mm", "torch_loop"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_s_implementations_are_correct(name: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, "", dtype, function_of("grouped_gemm", name)), edge_cases=6)


def test_all_rows_are_multiplied_in_the_edge_cases_of_a_single_expert() -> None:
    (workload,) = OPERATOR.workloads("smoke")
    one = replace(workload, axes={**workload.axes, "experts": 1})

    cases = list(OPERATOR.edge_cases(one, OPERATOR.inputs(one, "cpu", 0)))

    assert cases
    assert all(ends[-1] == len(x) for _, (x, _, ends) in cases)


WRONG: dict[str, Callable[..., Tensor]] = {
    "all zero": lambda x, weight, ends: x.new_zeros(x.shape[0], weight.shape[1]),
    "the first expert for all": lambda x, weight, ends: x @ weight[0].t(),
    "the next expert": lambda x, weight, ends: reference(x, weight.roll(1, 0), ends),
    "the last row left out": lambda x, weight, ends: torch.cat(
        (reference(x, weight, ends)[:-1], x.new_zeros(1, weight.shape[1]))
    ),
    "rows read as if one followed the other": lambda x, weight, ends: reference(
        x.as_strided(x.shape, (x.shape[1], 1)), weight, ends
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_product_is_incorrect(wrong: str) -> None:
    assert not judge(OPERATOR, "", "bfloat16", WRONG[wrong]).ok


def test_skewed_rows_belong_mostly_to_the_first_expert() -> None:
    (workload,) = OPERATOR.workloads("smoke")
    _, _, ends = OPERATOR.inputs(workload, "cpu", 0)

    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    assert ends[-1] == workload.axes["rows"]
    assert counts.argmax() == 0


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    read, written, flops = counted(OPERATOR, smoke_workload(OPERATOR, "", "bfloat16"))

    assert read == 2 * (24 * 128 + 3 * 64 * 128) + 4 * 3
    assert written == 2 * 24 * 64
    assert flops == 2 * 24 * 128 * 64


def test_only_weights_of_experts_with_rows_are_counted() -> None:
    axes = {"rows": 2, "experts": 8, "in_features": 16, "out_features": 4, "skewed": False}
    read, _, _ = counted(OPERATOR, Workload(name="w", axes=axes, dtype="float32"))

    assert read == 4 * (2 * 16 + 2 * 4 * 16) + 4 * 8


def test_our_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("grouped_gemm", "triton_grouped"), IN_HALF, "grouped_gemm", "triton_grouped")
