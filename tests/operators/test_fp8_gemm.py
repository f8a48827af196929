"""Linear layers in FP8: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, count_slices, counted, function_of, judge, smoke_workload
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure.correctness.check import Correctness
from kernels_bench_tools.measure.correctness.compare import WrongResultError, compare
from kernels_bench_tools.measure.judge.changing_inputs import change
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator
from kernels_bench_tools.operators.fp8_gemm import dequantized, torch_linear
from kernels_bench_tools.operators.fp8_quant import torch_quantize

OPERATOR: Operator = find_operator("fp8_gemm")
GROUPS = ("Row-wise", "Blocks of 128")
FP8 = "float8_e4m3fn"
INTERPRETED = """
from cell import triton_fp8_gemm
from kernels_bench_tools.operators.fp8_gemm import torch_linear

operator = find_operator("fp8_gemm")
for workload in operator.workloads("smoke"):
    assert not judge(operator, workload, triton_fp8_gemm).flags
    tokens = 170  # several groups of tiles, the last one smaller
    inputs = operator.inputs(replace(workload, axes={**workload.axes, "tokens": tokens}), "cpu", 0)
    found = triton_fp8_gemm(*inputs, tile=(16, 128, 4, 3))
    torch.testing.assert_close(found, torch_linear(*inputs), rtol=0.02, atol=0.02)
"""


def judged(group: str, function: Callable[..., Any]) -> Correctness:
    return judge(OPERATOR, group, FP8, function)


def workload_of(group: str) -> Workload:
    return smoke_workload(OPERATOR, group, FP8)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", ["torch_fp8_gemm", "torch_compiled_fp8_gemm"])
def test_a_product_of_dequantized_operands_is_correct(name: str, group: str) -> None:
    assert_correct(judged(group, function_of("fp8_gemm", name)), edge_cases=10)


def test_torch_s_product_is_correct_for_rows_and_unsupported_for_blocks_on_the_cpu() -> None:
    function = function_of("fp8_gemm", "torch_scaled_mm")

    assert judged("Row-wise", function).ok
    with pytest.raises(Unsupported, match="scales of blocks"):
        judged("Blocks of 128", function)


@pytest.mark.parametrize(("tokens", "columns"), [(64, 512), (3, 384), (1, 128)])
def test_torch_accepts_the_scales_of_blocks_for_cuda(
    tokens: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.randn(tokens, columns), torch.randn(256, columns)
    inputs = (*torch_quantize(values[0], 1, 128), *torch_quantize(values[1], 128, 128))
    theirs = functional.scaled_mm

    def scaled_mm(x: Tensor, weight: Tensor, of_x: Tensor, one: Any, of_weight: Tensor, other: Any) -> Tensor:
        given = (torch.empty_like(value, device="meta") for value in (x, weight, of_x, of_weight))
        x_, weight_, of_x_, of_weight_ = given
        theirs(x_, weight_, of_x_, one, of_weight_, other)  # torch's own check of strides
        assert x.shape[0] % 4 == 0  # which only cuBLAS checks
        return torch_linear(x, of_x, weight.t(), of_weight.t()[:, : columns // 128])

    monkeypatch.setattr(functional, "scaled_mm", scaled_mm)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))

    found = function_of("fp8_gemm", "torch_scaled_mm")(*inputs)

    torch.testing.assert_close(found, torch_linear(*inputs))


def quantized_again(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """What hf_kernels_fp8_gemm computes: ``x`` in bfloat16, quantized by the kernel."""
    values = dequantized(x.float(), x_scale).bfloat16()
    return torch_linear(*torch_quantize(values, 1, 128), weight, weight_scale)


def test_only_a_kernel_that_declares_fp8_may_quantize_activations_again() -> None:
    workload = next(one for one in OPERATOR.workloads("cpu") if one.group == "Blocks of 128")
    inputs = OPERATOR.inputs(workload, "cpu", 0)
    declared = OPERATOR.adapted(precision="fp8")

    assert judged("Blocks of 128", quantized_again).ok
    for number in range(1, 40):  # as before timed calls: few of the largest values of blocks are 448 then
        change(inputs, (0, 1), number)
    found = quantized_again(*inputs)
    compare(found, declared, inputs).require_correct()
    for operator, wrong in (
        (OPERATOR, found),
        (declared, found.roll(1, 0)),
        (declared, torch.zeros_like(found)),
    ):
        with pytest.raises(WrongResultError):
            compare(wrong, operator, inputs).require_correct()


def first_scale(scale: Tensor) -> Tensor:
    return scale[:, :1].expand_as(scale)


WRONG: dict[str, Callable[..., Tensor]] = {
    "all zero": lambda x, s, w, t: torch.zeros(x.shape[0], w.shape[0], dtype=torch.bfloat16),
    "no scales": lambda x, s, w, t: functional.linear(x.float(), w.float()).bfloat16(),
    "no scales of the activations": lambda x, s, w, t: torch_linear(x, torch.ones_like(s), w, t),
    "the next token's scale": lambda x, s, w, t: torch_linear(x, s.roll(1, 0), w, t),
    "the next row's scale": lambda x, s, w, t: torch_linear(x, s, w, t.roll(1, 0)),
    "the first block's scale": lambda x, s, w, t: torch_linear(x, first_scale(s), w, first_scale(t)),
    "scales in half precision": lambda x, s, w, t: torch_linear(x, s.half().float(), w, t.half().float()),
    "a column left out": lambda x, s, w, t: torch_linear(
        torch.cat((x[:, :-1], torch.zeros(len(x), 1).to(x.dtype)), 1), s, w, t
    ),
    "float32 returned": lambda x, s, w, t: torch_linear(x, s, w, t).float(),
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_product_is_incorrect(wrong: str, group: str) -> None:
    expected = wrong == "the first block's scale" and group == "Row-wise"  # there is only one

    assert judged(group, WRONG[wrong]).ok == expected


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    operands, written, flops = 16 * 256 + 384 * 256, 2 * 16 * 384, 2 * 16 * 256 * 384
    row_wise, in_blocks = (counted(OPERATOR, workload_of(group), torch_linear) for group in GROUPS)
    assert row_wise == (operands + 4 * (16 + 384), written, flops)
    assert in_blocks == (operands + 4 * (16 * 2 + 3 * 2), written, flops)


@pytest.mark.parametrize("group", GROUPS)
def test_slices_of_whole_blocks_cover_the_result(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels_bench_tools.operators.fp8_gemm.WEIGHTS_AT_ONCE", 5 * 256)
    inputs = tuple(value.float() for value in OPERATOR.inputs(workload_of(group), "cpu", 0))

    assert count_slices(OPERATOR, inputs) > 1


def test_our_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("fp8_gemm", "triton_fp8_gemm"), INTERPRETED)
