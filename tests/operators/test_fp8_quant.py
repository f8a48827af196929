"""Quantization to FP8 by rows, blocks and tiles: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, counted, function_of, judge_on, run_cell, smoke_workload
from torch import Tensor

from kernels_bench_tools.errors import OperatorError, Unsupported
from kernels_bench_tools.measure.correctness.check import Correctness, check
from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator

OPERATOR: Operator = find_operator("fp8_quant")

DTYPES = ("float32", "bfloat16", "float16")
GROUPS = ("Row-wise", "Blocks of 1x128", "Blocks of 128x128")
FP8 = torch.float8_e4m3fn

INTERPRETED = """
import numpy
import triton.language as tl
from triton.runtime import interpreter
from cell import triton_fp8_quant

theirs = interpreter._convert_float


def convert(values, given, wanted, rounding):
    # The interpreter loses the carry where rounding reaches the next power of two; a GPU converts as torch does.
    if wanted != tl.float8e4nv:
        return theirs(values, given, wanted, rounding)
    converted = torch.from_numpy(values.astype(numpy.float32)).to(torch.float8_e4m3fn)
    return converted.view(torch.uint8).numpy()


interpreter._convert_float = convert
operator = find_operator("fp8_quant")
for workload in operator.workloads("smoke"):
    # As few tokens as leave a block of rows unfinished: the interpreter runs programs one after another.
    cases = [("bfloat16", 16, 256), ("float32", 130 if "128x128" in workload.group else 5, 520)]
    if workload.group == "Row-wise":
        cases += [("bfloat16", 2, 17000)]  # longer than a program's registers
    for dtype, tokens, hidden_dim in cases:
        axes = {**workload.axes, "tokens": tokens, "hidden_dim": hidden_dim}
        case = replace(workload, axes=axes, dtype=dtype)
        of = operator if tokens == 16 else replace(operator, edge_cases=no_edge_cases)
        assert not judge(of, case, triton_fp8_quant).flags
"""


def workload_of(group: str, dtype: str) -> Workload:
    found = smoke_workload(OPERATOR, group, dtype)
    return replace(found, axes={**found.axes, "tokens": 130, "hidden_dim": 520})


def judge(group: str, dtype: str, function: Callable[..., Any]) -> Correctness:
    return judge_on(workload_of(group, dtype), OPERATOR, function)


def spread(scale: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    """Return each number's scale."""
    rows, columns = x.shape
    return scale.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]


def scales(x: Tensor, height: int, width: int, least: float = 1e-12) -> Tensor:
    """The formula, block by block."""
    rows = [part.float().abs().split(width, 1) for part in x.split(height)]
    return torch.stack([torch.stack([block.max() for block in row]) for row in rows]).clamp(min=least) / 448


def right(x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    scale = scales(x, height, width)
    return (x.float() / spread(scale, x, height, width)).clamp(-448, 448).to(FP8), scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
def test_the_formula_is_correct_in_every_dtype_and_edge_case(group: str, dtype: str) -> None:
    assert_correct(judge(group, dtype, right), edge_cases=10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", ["torch_fp8_quant", "torch_compiled_fp8_quant"])
def test_torch_s_implementations_are_correct(name: str, group: str, dtype: str) -> None:
    verdict = judge(group, dtype, function_of("fp8_quant", name))

    assert_correct(verdict)
    assert "refused" not in verdict.corr


def truncated(x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Values rounded toward zero: three bits of mantissa kept, the others dropped."""
    _, scale = right(x, height, width)
    exact = x.float() / spread(scale, x, height, width)
    step = torch.exp2(exact.abs().clamp(min=2**-6).log2().floor() - 3)
    return ((exact / step).trunc() * step).to(FP8), scale


WRONG: dict[str, Callable[..., Any]] = {
    "all zero": lambda x, h, w: tuple(torch.zeros_like(one) for one in right(x, h, w)),
    "zero values": lambda x, h, w: (torch.zeros(x.shape).to(FP8), right(x, h, w)[1]),
    "zero scales": lambda x, h, w: (right(x, h, w)[0], torch.zeros_like(right(x, h, w)[1])),
    "no scales": lambda x, h, w: (x.float().clamp(-448, 448).to(FP8), torch.ones_like(right(x, h, w)[1])),
    "scales the other way": lambda x, h, w: (right(x, h, w)[0], 1 / right(x, h, w)[1]),
    "a scale for the tensor": lambda x, h, w: (
        (x.float() / (x.float().abs().max() / 448)).to(FP8),
        (x.float().abs().max() / 448).expand_as(right(x, h, w)[1]).clone(),
    ),
    "scales in half precision": lambda x, h, w: (right(x, h, w)[0], right(x, h, w)[1].bfloat16().float()),
    "bfloat16 stored": lambda x, h, w: (right(x, h, w)[0].bfloat16(), right(x, h, w)[1]),
    "the other FP8": lambda x, h, w: (right(x, h, w)[0].float().to(torch.float8_e5m2), right(x, h, w)[1]),
    "its digits": lambda x, h, w: (
        right(x, h, w)[0].float().to(torch.float8_e5m2).float().to(FP8),
        right(x, h, w)[1],
    ),
    "truncated": truncated,
    "zeros over zero": lambda x, h, w: (
        (x.float() / spread(scales(x, h, w, least=0.0), x, h, w)).to(FP8),
        scales(x, h, w),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_quantization_is_incorrect(wrong: str, group: str, dtype: str) -> None:
    assert not judge(group, dtype, WRONG[wrong]).ok


def test_both_neighbours_of_a_tie_are_correct() -> None:
    x = torch.tensor([[448.0, 17.0, -17.0, 19.0]])  # 17 and 19 lie between 16, 18 and 20
    for values in ([448, 16, -16, 20], [448, 18, -18, 18]):
        found = torch.tensor([values], dtype=torch.float32).to(FP8), torch.ones(1, 1)
        of = replace(OPERATOR, edge_cases=lambda *_: (), smaller=lambda workload: workload)
        workload = workload_of("Row-wise", "float32")
        of = replace(of, inputs=lambda *_: (x, 1, 4))
        assert check(of, workload, lambda *_, found=found: tuple(map(torch.clone, found)), (x, 1, 4)).ok


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    def work(group: str) -> tuple[int, int, int]:
        return counted(OPERATOR, workload_of(group, "bfloat16"), right)

    numbers = 130 * 520  # of one byte, when they are written
    assert work("Row-wise") == (numbers * 2, numbers + 130 * 4, numbers * 4)
    assert work("Blocks of 1x128") == (numbers * 2, numbers + 130 * 5 * 4, numbers * 4)
    assert work("Blocks of 128x128") == (numbers * 2, numbers + 2 * 5 * 4, numbers * 4)


def test_there_is_no_backward_mode() -> None:
    with pytest.raises(OperatorError, match="has no bwd mode"):
        in_mode(OPERATOR, "bwd")


def test_our_kernels_are_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("fp8_quant", "triton_fp8_quant"), INTERPRETED)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        *(("fp8_quant", name) for name in ("triton_fp8_quant", "hf_kernels_fp8_row", "hf_kernels_fp8_block")),
        *(("fp8_gemm", name) for name in ("triton_fp8_gemm", "hf_kernels_fp8_gemm", "torch_scaled_mm")),
    ],
)
def test_a_device_without_e4m3_is_unsupported(
    operator: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    load = run_cell(operator, name)["load"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))

    with pytest.raises(Unsupported, match=r"compute capability 8\.9"):
        load()
