"""RMS normalization, alone and with a residual: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, counted, function_of, judge, smoke_workload, without_rest
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.correctness.compare import WrongResultError, compare
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import Operator, find_operator

OPERATOR: Operator = find_operator("rms_norm")

DTYPES = ("float32", "bfloat16", "float16")
GROUPS = ("RMSNorm", "RMSNorm with residual")

INTERPRETED = """
from cell import triton_rms_norm
from kernels_bench_tools.measure.modes import in_mode, timed_function

operator = find_operator("rms_norm")
# Few rows: the interpreter takes a millisecond for each line of each program, and a row is a program.
USUAL, LONG, SHORT = (2, 4, 256), (1, 2, 17000), (5, 3, 96)


def sized(workload, shape, dtype):
    axes = dict(zip(("batch", "seq_len", "hidden_dim"), shape))
    return replace(workload, axes={**workload.axes, **axes}, dtype=dtype)


with torch.no_grad():
    for workload in operator.workloads("smoke"):
        # Edge cases in the type with the smallest range.
        judge(operator, sized(workload, USUAL, "float16"), triton_rms_norm)
        for shape, dtype in ((LONG, "float32"), (SHORT, "bfloat16")):
            judge(replace(operator, edge_cases=no_edge_cases), sized(workload, shape, dtype), triton_rms_norm)
    # Shorter rows go the way of long ones, several in a program.
    cell.LONGEST_IN_REGISTERS, cell.LONGEST_IN_REGISTERS_BACKWARD, cell.CHUNK = 2048, 1024, 1024
    backward = in_mode(operator, "bwd")
    for workload in backward.workloads("smoke"):
        for shape in ((2, 3, 769), (1, 9, 2100), SHORT):
            case = sized(workload, shape, "float32")
            judge(backward, case, timed_function(operator, triton_rms_norm, "bwd").call)

for shape in ((4, 769), (9, 2100)):  # with a residual, whose own gradient joins
    values = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]
    given = [values[0], torch.randn(shape[-1], dtype=torch.float64), values[1]]
    upstream = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]

    def gradients(function, dtype):
        leaves = [value.to(dtype).requires_grad_() for value in given]
        return torch.autograd.grad(function(*leaves), leaves, [value.to(dtype) for value in upstream])

    right = gradients(operator.reference, torch.float64)
    for found, expected in zip(gradients(triton_rms_norm, torch.float32), right):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
"""


def right(x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-6) -> Any:
    """The formula written out, computed in float32 and rounded once."""
    hidden = x.float() if residual is None else x.float() + residual.float()
    out = hidden / (hidden.square().mean(-1, keepdim=True) + eps).sqrt() * weight.float()
    return out.to(x.dtype) if residual is None else (out.to(x.dtype), hidden.to(x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
def test_the_formula_is_correct_in_every_dtype_and_edge_case(group: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, group, dtype, right), edge_cases=13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", ["torch_rms_norm", "torch_eager_rms_norm", "torch_compiled_rms_norm"])
def test_torch_s_implementations_are_correct(name: str, group: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, group, dtype, function_of("rms_norm", name)))


WRONG: dict[str, Callable[..., Tensor]] = {
    "all zero": lambda x, *_: torch.zeros_like(x),
    "no weight": lambda x, weight, _, eps: right(x, torch.ones_like(weight), eps=eps),
    "Qwen's eps always": lambda x, weight, *_: right(x, weight, eps=1e-6),
    "Llama's eps always": lambda x, weight, *_: right(x, weight, eps=1e-5),
    "no eps": lambda x, weight, *_: right(x, weight, eps=0.0),
    "layer norm": lambda x, weight, _, eps: torch.nn.functional.layer_norm(
        x, x.shape[-1:], weight, None, eps
    ),
    "sum for mean": lambda x, *rest: right(x, *rest) / x.shape[-1] ** 0.5,
    "a column less in the mean": lambda x, *rest: right(x, *rest) * (1 - 1 / x.shape[-1]) ** 0.5,
    "the last column": lambda x, *rest: torch.cat(
        (right(x, *rest)[..., :-1], torch.zeros_like(x[..., -1:])), -1
    ),
    "what follows whole tiles of 2048 columns": lambda x, *rest: without_rest(right(x, *rest), 2048),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_norm_is_incorrect(wrong: str, dtype: str) -> None:
    assert not judge(OPERATOR, "RMSNorm", dtype, WRONG[wrong]).ok


def test_long_rows_without_a_mean_square_are_incorrect_in_half_precision() -> None:
    workload = OPERATOR.workloads("smoke", {"function": "rms_norm"})[0]
    axes = {**workload.axes, "seq_len": 64, "hidden_dim": 16384}
    inputs = OPERATOR.inputs(replace(workload, axes=axes, dtype="bfloat16"), "cpu", 0)

    with pytest.raises(WrongResultError, match="beyond the tolerance"):
        compare(inputs[0] * inputs[1], OPERATOR, inputs).require_correct()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, weight, _, eps: right(x, weight, eps=eps),
        lambda x, weight, residual, eps: (right(x, weight, eps=eps), x + residual),
        lambda x, weight, residual, eps: (right(x + residual, weight, eps=eps), residual.clone()),
        lambda x, weight, residual, _: right(x, weight, residual, 1e-6),
        lambda x, *_: tuple(torch.zeros_like(x) for _ in range(2)),
        lambda x, weight, residual, eps: right(x, weight, residual.as_strided(x.shape, x.stride()), eps),
    ],
    ids=[
        *("one output", "the residual left out", "the old residual", "Qwen's eps always", "all zero"),
        "a residual with the strides of x",
    ],
)
def test_a_wrong_sum_is_incorrect(wrong: Callable[..., Any]) -> None:
    assert not judge(OPERATOR, "RMSNorm with residual", "bfloat16", wrong).ok


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    def work(group: str) -> tuple[int, int, int]:
        return counted(OPERATOR, smoke_workload(OPERATOR, group, "bfloat16"))

    numbers = 2 * 32 * 256
    assert work("RMSNorm") == (numbers * 2 + 256 * 2, numbers * 2, numbers * 4)
    assert work("RMSNorm with residual") == (numbers * 4 + 256 * 2, numbers * 4, numbers * 5)


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
def test_a_backward_mode_has_the_function_without_a_residual_only(mode: str) -> None:
    backward = in_mode(OPERATOR, mode)

    assert {workload.group for workload in backward.workloads("default,smoke")} == {"RMSNorm"}
    for workload in backward.workloads("smoke"):
        inputs = backward.inputs(workload, "cpu", 0)
        with torch.no_grad():
            assert check(backward, workload, timed_function(OPERATOR, right, mode).call, inputs).ok
    with pytest.raises(OperatorError):
        in_mode(OPERATOR.for_workload(smoke_workload(OPERATOR, GROUPS[1], "float32")), mode)


def test_inputs_of_edge_cases_are_finite_in_half_precision() -> None:
    workload = OPERATOR.smaller(OPERATOR.workloads("trainscale")[0])
    assert workload.dtype == "float16"

    for name, (x, *_) in OPERATOR.edge_cases(workload, OPERATOR.inputs(workload, "cpu", 0)):
        assert x.isfinite().all(), name


def test_our_kernels_are_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("rms_norm", "triton_rms_norm"), INTERPRETED)
