from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, counted, function_of, judge, judge_on, run_cell
from torch import Tensor

from kernels_bench_tools.measure.operator import Operator, find_operator

OPERATOR: Operator = find_operator("causal_conv1d")
WORKLOADS = {w.name: w for name in OPERATOR.workload_sets for w in OPERATOR.workloads(name)}
SMOKE = WORKLOADS["smoke_B2_D8_S32_W4"]
# Interpreted: rows that share a program, rows shorter than a vector and than the filter, and rows of several programs;
# vectors of float32 are half as long. The interpreter cuts bfloat16 off where a GPU rounds, hence no look at `flags` there.
INTERPRETED = """
import warnings

warnings.simplefilter("ignore")
operator = find_operator("causal_conv1d")
smoke = operator.workloads("smoke")[0]
for dtype, activation, *extents in (
    ("float16", "silu", 2, 8, 32, 4),
    ("float32", "none", 3, 5, 1, 3),
    ("float32", "silu", 1, 2, 70, 5),
    ("bfloat16", "none", 2, 2, 1030, 5),
):
    axes = dict(zip(operator.axes, (*extents, activation)))
    workload = replace(smoke, axes=axes, dtype=dtype)
    verdict = judge(operator, workload, cell.triton_causal_conv1d)
    assert not verdict.flags or dtype == "bfloat16", (axes, dtype, verdict.flags)
"""


def right(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None) -> Tensor:
    return OPERATOR.reference(x, weight, bias, activation)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["smoke_B2_D8_S32_W4", "B2_D64_S128_W2", "decode_B1_D8192_S1_W4"])
def test_torch_is_correct_in_every_dtype_and_edge_case(name: str, dtype: str) -> None:
    workload = replace(OPERATOR.smaller(WORKLOADS[name]), dtype=dtype)

    function = function_of("causal_conv1d", "torch_causal_conv1d")

    assert_correct(judge_on(workload, OPERATOR, function), edge_cases=11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_formula_of_the_compiled_notebook_is_correct(dtype: str) -> None:
    function = function_of("causal_conv1d", "torch_compiled_causal_conv1d")

    assert_correct(judge(OPERATOR, "", dtype, function))


def test_the_hub_kernel_gets_the_activation_by_name() -> None:
    def causal_conv1d_fn(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        seq_idx: Tensor | None = None,
        initial_states: Tensor | None = None,
        return_final_states: bool = False,
        final_states_out: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        assert bias is not None
        assert seq_idx is initial_states is final_states_out is None
        assert activation in (None, "silu", "swish")
        return right(x, weight, bias, activation)

    found = run_cell("causal_conv1d", "hf_kernels_causal_conv1d")
    found["get_kernel"] = lambda repo, *, version: SimpleNamespace(causal_conv1d_fn=causal_conv1d_fn)

    for workload in (SMOKE, WORKLOADS["B2_D64_S128_W2"]):
        verdict = judge_on(workload, OPERATOR, found["load"]())
        assert verdict.ok, verdict.reason


def test_the_triton_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("causal_conv1d", "triton_causal_conv1d"), INTERPRETED)


def leaking_rows(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None) -> Tensor:
    before = torch.cat((torch.zeros(1).to(x), x.flatten()[:-1])).reshape(x.shape)
    out = right(x, weight, bias, None)
    out[..., 0] += weight[:, -2] * before[..., 0]
    return torch.nn.functional.silu(out) if activation else out


def last_column_forgotten(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None) -> Tensor:
    out = right(x, weight, bias, activation)
    out[-1, -1, -1] = 0
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "wrong",
    [
        leaking_rows,
        last_column_forgotten,
        lambda x, w, b, a: right(x, w.flip(-1), b, a),
        lambda x, w, b, a: right(x.flip(-1), w, b, a).flip(-1),
        lambda x, w, b, a: right(x, w, torch.zeros_like(b), a),
        lambda x, w, b, a: right(x, w, b, None),
        lambda x, w, b, a: torch.nn.functional.gelu(right(x, w, b, None)),
        lambda x, w, b, a: right(x, w * torch.tensor([0, 1, 1, 1][-w.shape[1] :]).to(w), b, a),
        lambda x, w, b, a: torch.zeros_like(x),
    ],
    ids=["leak", "last", "taps reversed", "looks ahead", "no bias", "no SiLU", "GELU", "first tap", "zeros"],
)
def test_a_wrong_convolution_is_incorrect(wrong: Callable[..., Any], dtype: str) -> None:
    assert not judge(OPERATOR, "", dtype, wrong).ok


def test_the_reference_is_the_formula() -> None:
    x, weight, bias = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 100.0]]), torch.tensor([0.5])

    assert right(x, weight, bias, None).tolist() == [[100.5, 210.5, 320.5]]
    assert right(-x, weight / 100, bias, "silu")[0, 0].item() == pytest.approx(-0.5 / (1 + 2.718281828**0.5))


def test_work_counts_each_tensor_once_and_the_activation() -> None:
    read, written, flops = counted(OPERATOR, SMOKE)

    assert read == (2 * 8 * 32 + 8 * 4 + 8) * 4
    assert written == 2 * 8 * 32 * 4
    assert flops == 2 * 8 * 32 * (8 + 4)
    assert counted(OPERATOR, WORKLOADS["B2_D64_S128_W2"])[2] == 2 * 64 * 128 * 4


def test_the_default_workloads_are_those_of_kernels_benchmarks() -> None:
    workloads = OPERATOR.workloads("default")

    assert len(workloads) == 24
    assert (workloads[0].name, workloads[-1].name) == ("B2_D64_S128_W2", "B4_D2048_S2048_W4")
    assert {(workload.dtype, workload.axes["activation"]) for workload in workloads} == {("float32", "none")}
