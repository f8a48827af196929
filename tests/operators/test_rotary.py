from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from implementations import (
    assert_correct,
    code_of,
    count_slices,
    counted,
    function_of,
    judge,
    judge_on,
    run_cell,
)
from torch import Tensor

from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator

OPERATOR: Operator = find_operator("rotary")
WORKLOADS = {w.name: w for name in OPERATOR.workload_sets for w in OPERATOR.workloads(name)}
SMALL = (WORKLOADS["smoke_B2_S16_H4_KV2_D32"], WORKLOADS["decode_B8_S1_H32_KV8_D128"])
# Interpreted: ordinary tokens, several programs for a token's heads, heads and widths that are no powers of two. Edge
# cases with several programs, because some of them have other strides.
INTERPRETED = """
operator = find_operator("rotary")
smoke = operator.workloads("smoke")[0]
for dtype, heads, kv_heads, head_dim, most in (
    ("float32", 12, 3, 80, 128), ("bfloat16", 4, 2, 32, 4096), ("float16", 3, 12, 64, 128)
):
    axes = {"batch": 2, "seq_len": 3, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    workload = replace(smoke, axes=axes, dtype=dtype)
    cell.PAIRS_PER_PROGRAM = most
    of = operator if dtype == "float32" else replace(operator, edge_cases=no_edge_cases)
    assert not judge(of, workload, cell.triton_rotary).flags
"""


def right(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return OPERATOR.reference(q, k, cos, sin)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
def test_torch_is_correct_in_every_dtype_and_edge_case(workload: Workload, dtype: str) -> None:
    verdict = judge_on(replace(workload, dtype=dtype), OPERATOR, function_of("rotary", "torch_rotary"))

    assert_correct(verdict, edge_cases=9)


def test_the_formula_of_the_compiled_notebook_is_correct() -> None:
    verdict = judge_on(SMALL[0], OPERATOR, function_of("rotary", "torch_compiled_rotary"))

    assert verdict.ok, verdict.reason


def test_the_hub_kernel_gets_halves_and_new_memory() -> None:
    def apply_rotary(
        x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool
    ) -> None:
        # What the kernel's binding asks for.
        assert x1.dtype == x2.dtype == cos.dtype == sin.dtype == out1.dtype == out2.dtype
        assert x1.shape == x2.shape == out1.shape == out2.shape
        assert not conj
        out1.copy_(x1 * cos - x2 * sin)
        out2.copy_(x1 * sin + x2 * cos)

    found = run_cell("rotary", "hf_kernels_rotary")
    found["get_kernel"] = lambda repo, *, version: SimpleNamespace(apply_rotary=apply_rotary)

    assert_correct(judge_on(replace(SMALL[1], dtype="bfloat16"), OPERATOR, found["load"]()))


def test_the_triton_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("rotary", "triton_rotary"), INTERPRETED)


def interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos[:, None], sin[:, None]

    def rotate(x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

    return rotate(q), rotate(k)


def last_token_forgotten(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    rotated = right(q, k, cos, sin)
    rotated[1][:, -1] = k[:, -1]
    return rotated


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "wrong",
    [
        interleaved,
        last_token_forgotten,
        lambda q, k, cos, sin: right(q, k, cos, -sin),
        lambda q, k, cos, sin: right(q, k, sin, cos),
        lambda q, k, cos, sin: right(q, k, cos[:1].expand_as(cos), sin[:1].expand_as(sin)),
        lambda q, k, cos, sin: (right(q, k, cos, sin)[0], k.clone()),
        lambda q, k, cos, sin: tuple(torch.zeros_like(x) for x in (q, k)),
        lambda q, k, cos, sin: right(q, k, cos, sin)[0],
    ],
    ids=[
        "interleaved",
        "last token",
        "backwards",
        "cos is sin",
        "one angle",
        "k as it was",
        "zeros",
        "q only",
    ],
)
def test_a_wrong_rotation_is_incorrect(wrong: Callable[..., Any], dtype: str) -> None:
    assert not judge(OPERATOR, "", dtype, wrong).ok


def test_a_rotation_keeps_the_length_of_every_pair() -> None:
    q, k, cos, sin = (value.double() for value in OPERATOR.inputs(SMALL[0], "cpu", 0))
    angle = torch.atan2(sin, cos)

    for x, rotated in zip((q, k), right(q, k, angle.cos(), angle.sin()), strict=True):
        left, right_half = x.chunk(2, -1)
        before = torch.complex(left, right_half)
        after = torch.complex(*rotated.chunk(2, -1))
        assert torch.allclose(after, before * torch.exp(1j * angle)[:, None], rtol=1e-12, atol=1e-12)


def test_work_counts_both_tensors_and_the_tables_once() -> None:
    workload = WORKLOADS["B4_S8192_H32_KV8_D128"]
    small = replace(workload, axes={**workload.axes, "batch": 2, "seq_len": 3})

    read, written, flops = counted(OPERATOR, small)

    numbers = 2 * 3 * (32 + 8) * 128
    assert read == (numbers + 2 * 3 * 64) * 2
    assert written == numbers * 2
    assert flops == numbers // 2 * 6


def test_a_backward_pass_reads_gradients_and_tables_only() -> None:
    backward = in_mode(OPERATOR, "bwd")
    inputs = backward.inputs(SMALL[0], "cpu", 0)
    q, k, cos, sin, *_ = inputs

    work = backward.work(inputs, (q, k))

    assert work.bytes_written == q.nbytes + k.nbytes
    assert work.bytes_read == q.nbytes + k.nbytes + cos.nbytes + sin.nbytes
    assert (
        in_mode(OPERATOR, "fwd_bwd").work(inputs, (q, k)).bytes_read == work.bytes_read + q.nbytes + k.nbytes
    )


def test_the_slices_cover_both_outputs_and_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels_bench_tools.measure.inputs.SLICE_ELEMENTS", 2 * 5 * 4 * 32)
    inputs = OPERATOR.inputs(SMALL[0], "cpu", 0)

    assert count_slices(OPERATOR, inputs) == 4
    assert [len(piece) for _, piece in OPERATOR.gradient_slices((*inputs, *inputs[:2]))] == [6] * 4


def test_the_default_workloads_are_those_of_kernels_benchmarks() -> None:
    workloads = OPERATOR.workloads("default")

    assert len(workloads) == 24
    assert workloads[0].name == "B1_S128_H8_D64"
    assert workloads[-1].name == "B2_S2048_H32_D128"
    assert {workload.dtype for workload in workloads} == {"float32"}


def test_large_workloads_exceed_the_cache_of_an_h200() -> None:
    for workload in OPERATOR.workloads("large"):
        axes = {axis: int(extent) for axis, extent in workload.axes.items()}
        tokens = axes["batch"] * axes["seq_len"] * axes["head_dim"]
        assert 2 * 2 * tokens * (axes["heads"] + axes["kv_heads"]) > 2 * 60e6
