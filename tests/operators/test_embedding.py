"""Embedding lookups and their gradients: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, function_of, judge, run_cell, without_rest
from torch import Tensor

from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import Operator, find_operator

OPERATOR: Operator = find_operator("embedding")
SMOKE = OPERATOR.workloads("smoke")[0]
INTERPRETED = """
operator = find_operator("embedding")
smoke = operator.workloads("smoke")[0]
for dtype in ("float32", "bfloat16"):
    workload = replace(smoke, dtype=dtype)
    assert not judge(operator, workload, cell.triton_embedding).flags

cell.MANY_TOKENS = 4  # as many, one fewer and one more, twice as many, and runs of all of them side by side
for counts in ((4,), (3, 4, 5), (4, 8, 1, 0, 9, 2), (0, 3, 3, 3, 12), (1, 16, 1)):
    ids = torch.cat([torch.full((count,), row) for row, count in enumerate(counts)])
    ids = ids[torch.randperm(len(ids))]
    weight = torch.randn(len(counts) + 1, 70, requires_grad=True)
    upstream = torch.randn(len(ids), 70)
    expected = torch.zeros(weight.shape).index_add(0, ids, upstream)
    for tile in (None, (32, 64, 16)):
        (found,) = torch.autograd.grad(cell.triton_embedding(weight, ids, tile), weight, upstream)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
"""


def right(weight: Tensor, ids: Tensor) -> Tensor:
    return torch.stack([weight[row] for row in ids.tolist()])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["torch_embedding", "torch_compiled_embedding"])
def test_torch_is_correct_in_every_dtype_and_edge_case(name: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, "", dtype, function_of("embedding", name)), edge_cases=10)


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
def test_gradients_are_checked_too(mode: str) -> None:
    backward = in_mode(OPERATOR, mode)
    inputs = backward.inputs(SMOKE, "cpu", 0)

    def judged(forward: Callable[..., Any]) -> bool:
        return check(backward, SMOKE, timed_function(OPERATOR, forward, mode).call, inputs).ok

    assert judged(run_cell("embedding", "torch_embedding")["torch_embedding"])
    assert not judged(lambda weight, ids: right(weight.detach(), ids) + 0 * weight[ids])


WRONG: dict[str, Callable[..., Any]] = {
    "zeros": lambda weight, ids: torch.zeros(len(ids), weight.shape[1], dtype=weight.dtype),
    "the next row": lambda weight, ids: weight[(ids + 1) % len(weight)],
    "the last token forgotten": lambda weight, ids: torch.cat((weight[ids[:-1]], weight[:1])),
    "tokens after whole tiles of 32": lambda weight, ids: without_rest(weight[ids], 32, axis=0),
    "columns after whole tiles of 4096": lambda weight, ids: without_rest(weight[ids], 4096),
    "one rounding off": lambda weight, ids: torch.nextafter(weight[ids], torch.full((), torch.inf)),
    "a view of the weight's first rows": lambda weight, ids: weight[: len(ids)],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_lookup_is_incorrect(wrong: str) -> None:
    assert not judge(OPERATOR, "", "bfloat16", WRONG[wrong]).ok
    assert judge(OPERATOR, "", "bfloat16", right).ok


def test_few_ids_are_frequent_and_all_are_in_range() -> None:
    _, ids = OPERATOR.inputs(
        replace(SMOKE, axes={"tokens": 4000, "vocabulary": 500, "hidden_dim": 1}), "cpu", 0
    )

    counts = ids.bincount(minlength=500)
    assert len(counts) == 500
    assert counts[0] > 300
    assert counts[250:].max() < 10


def test_only_rows_that_are_selected_count_as_read() -> None:
    weight, _ = OPERATOR.inputs(SMOKE, "cpu", 0)
    ids = torch.tensor([3, 3, 7])
    gradient = weight[ids]

    forward = OPERATOR.work((weight, ids), gradient)
    backward = in_mode(OPERATOR, "bwd").work((weight, ids, gradient), weight)
    both = in_mode(OPERATOR, "fwd_bwd").work((weight, ids, gradient), (gradient, weight))

    row = 64 * 4
    assert (forward.bytes_read, forward.bytes_written) == (3 * 8 + 2 * row, 3 * row)
    assert (backward.bytes_read, backward.bytes_written) == (3 * 8 + 3 * row, 100 * row)
    assert both.bytes_moved == forward.bytes_moved + backward.bytes_moved - 3 * 8


@pytest.mark.parametrize("at_once", [2**24, 700, 1])
def test_slices_cover_the_result_and_the_gradient(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels_bench_tools.measure.inputs.SLICE_ELEMENTS", at_once)
    weight, ids = OPERATOR.inputs(SMOKE, "cpu", 0)
    rows = torch.full((16, 64), torch.nan)
    columns = torch.full((100, 64), torch.nan)

    for index, piece in OPERATOR.slices((weight, ids)):
        rows[index] = right(*piece)
    for index, (part, own, upstream) in OPERATOR.gradient_slices((weight, ids, rows)):
        columns[index] = torch.zeros(part.shape).index_add(0, own, upstream)

    assert torch.equal(rows, right(weight, ids))
    assert torch.equal(columns, torch.zeros(weight.shape).index_add(0, ids, rows))


def test_our_kernels_are_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("embedding", "triton_embedding"), INTERPRETED)
