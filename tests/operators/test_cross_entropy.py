"""Cross entropy, with and without gradients: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, counted, function_of, judge, smoke_workload
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.correctness.compare import WrongResultError, compare
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.records.record import Flag

OPERATOR: Operator = find_operator("cross_entropy")

DTYPES = ("float32", "bfloat16", "float16")
GROUPS = ("Forward", "Forward with gradients")

INTERPRETED = """
from cell import triton_cross_entropy

torch.set_grad_enabled(False)
operator = find_operator("cross_entropy")


def examine(workload, hard):
    of = operator.for_workload(workload)
    verdict = judge(of if hard else replace(of, edge_cases=no_edge_cases), workload, triton_cross_entropy)
    if workload.dtype != "bfloat16":  # which the interpreter truncates
        assert verdict.corr["error_over_baseline"] < 2, verdict.corr


# The backward pass is in test_backward.
for workload in operator.workloads("smoke"):
    for dtype in ("float32", "bfloat16", "float16"):
        # Edge cases in the type with the smallest range; the vectors of float32 are half as wide.
        examine(replace(workload, dtype=dtype), hard=dtype == "float16")
    # One token, whose row several programs share, and a few that have one each.
    for tokens, vocabulary in ((1, 40001), (3, 20000)):
        axes = {**workload.axes, "tokens": tokens, "vocabulary": vocabulary}
        examine(replace(workload, axes=axes), hard=tokens == 1)

logits, target = torch.randn(6, 3000), torch.randint(3000, (6,))
target[1] = -100
expected = operator.for_workload(operator.workloads("smoke")[1]).reference(logits.double(), target)
loss, gradient = triton_cross_entropy(logits, target, True, in_place=True)
assert gradient.data_ptr() == logits.data_ptr()
torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-6)
torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-5, atol=1e-9)
masked = torch.randn(2, 3000)
masked[:, :2500] = float("-inf")  # whole vectors, at the start of a row
target = torch.tensor([2600, 2999])
found = triton_cross_entropy(masked, target)
torch.testing.assert_close(found, torch.nn.functional.cross_entropy(masked, target, reduction="none"))
"""


def right(logits: Tensor, target: Tensor, gradients: bool = False) -> Any:
    """The formulas written out, computed in float32."""
    counted = target != -100
    shifted = logits.float() - logits.float().amax(-1, keepdim=True)
    total = shifted.exp().sum(-1)
    one_hot = functional.one_hot(target.clamp(min=0), logits.shape[1]).bool()
    loss = torch.where(counted, total.log() - shifted[one_hot], 0.0)
    gradient = (shifted.exp() / total[:, None] - one_hot.float()) * counted[:, None]
    return (loss, gradient.to(logits.dtype)) if gradients else loss


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
def test_the_formula_is_correct_in_every_dtype_and_edge_case(group: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, group, dtype, right), edge_cases=12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    "name", ["torch_cross_entropy", "torch_eager_cross_entropy", "torch_compiled_cross_entropy"]
)
def test_torch_s_implementations_are_correct(name: str, group: str, dtype: str) -> None:
    verdict = judge(OPERATOR, group, dtype, function_of("cross_entropy", name))
    rounds_log_probabilities = name == "torch_cross_entropy" and dtype != "float32"

    assert verdict.ok, verdict.reason
    assert "refused" not in verdict.corr
    assert verdict.flags == ([Flag.PRECISION] if rounds_log_probabilities else [])


def one_column_less(logits: Tensor, target: Tensor, gradients: bool = False) -> Any:
    shorter = logits.clone()
    shorter[:, -1] = float("-inf")
    return right(shorter, target, gradients)


def in_tiles(logits: Tensor, target: Tensor) -> Tensor:
    """Return what a running maximum gives that begins with -inf: NaN after a tile of -inf."""
    largest, total = torch.full((len(logits),), float("-inf")), torch.zeros(len(logits))
    for tile in logits.float().split(32, dim=-1):
        larger = torch.maximum(largest, tile.amax(-1))
        total = total * (largest - larger).exp() + (tile - larger[:, None]).exp().sum(-1)
        largest = larger
    losses = total.log() + largest - logits.float()[torch.arange(len(logits)), target.clamp(min=0)]
    return torch.where(target < 0, 0.0, losses)


WRONG: dict[str, Callable[..., Any]] = {
    "NaN after a tile of -inf": in_tiles,
    "all zero": lambda x, target: torch.zeros(len(x)),
    "the mean of all": lambda x, target: right(x, target).mean().expand(len(x)).clone(),
    "no sum": lambda x, target: -x.float()[torch.arange(len(x)), target.clamp(min=0)],
    "ignored tokens too": lambda x, target: right(x, target.clamp(min=0)),
    "no maximum taken off": lambda x, target: torch.where(
        target < 0, 0.0, x.float().exp().sum(-1).log() - x.float()[torch.arange(len(x)), target.clamp(min=0)]
    ),
    "the last column": one_column_less,
    "in the type of the logits": lambda x, target: right(x, target).half(),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_loss_is_incorrect(wrong: str, dtype: str) -> None:
    assert not judge(OPERATOR, "Forward", dtype, WRONG[wrong]).ok


def test_a_sum_of_exponentials_of_half_of_the_logits_is_incorrect() -> None:
    (workload,) = OPERATOR.workloads("smoke", {"function": "forward"})
    workload = replace(workload, axes={**workload.axes, "tokens": 64, "vocabulary": 32000}, dtype="bfloat16")
    logits, target = OPERATOR.inputs(workload, "cpu", 0)
    some = logits[:, ::2].float().exp().sum(-1) * 2

    half_read = some.log() - logits[torch.arange(64), target].float()
    with pytest.raises(WrongResultError, match="beyond the tolerance"):
        compare(half_read, OPERATOR, (logits, target)).require_correct()


WRONG_GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "all zero": lambda gradient, x, target: torch.zeros_like(gradient),
    "only the targets": lambda gradient, x, target: gradient * (gradient < 0),
    "no targets": lambda gradient, x, target: x.float().softmax(-1).to(x.dtype),
    "of the mean": lambda gradient, x, target: gradient / len(x),
    "ignored tokens too": lambda gradient, x, target: right(x, target.clamp(min=0), True)[1],
    "the last column": lambda gradient, x, target: torch.cat((gradient[:, :-1], gradient[:, :1] * 0), -1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", WRONG_GRADIENTS)
def test_a_wrong_gradient_is_incorrect(wrong: str, dtype: str) -> None:
    def function(logits: Tensor, target: Tensor, _: bool) -> Any:
        loss, gradient = right(logits, target, True)
        return loss, WRONG_GRADIENTS[wrong](gradient, logits, target)

    assert not judge(OPERATOR, "Forward with gradients", dtype, function).ok


def test_gradients_may_overwrite_the_logits_if_that_is_declared() -> None:
    def in_place(logits: Tensor, target: Tensor, gradients: bool = False) -> Any:
        loss, gradient = right(logits, target, True)
        logits.copy_(gradient)
        return (loss, logits) if gradients else loss

    declared = OPERATOR.adapted(in_place=True)
    assert judge(declared, "Forward with gradients", "bfloat16", in_place).flags == []
    assert judge(OPERATOR, "Forward with gradients", "bfloat16", in_place).flags == [Flag.INPUT_MUTATED]


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    def work(group: str) -> tuple[int, int, int]:
        return counted(OPERATOR, smoke_workload(OPERATOR, group, "bfloat16"))

    logits, tokens = 8 * 1000, 8
    read = logits * 2 + tokens * 8  # once, and targets of 8 bytes
    assert work("Forward") == (read, tokens * 4, logits * 4)
    assert work("Forward with gradients") == (read, tokens * 4 + logits * 2, logits * 7)


def test_a_backward_pass_reads_the_logits_and_writes_their_gradient() -> None:
    backward = in_mode(OPERATOR, "bwd")
    (workload,) = backward.workloads("smoke")
    inputs = backward.inputs(workload, "cpu", 0)
    with torch.no_grad():
        call = timed_function(OPERATOR, right, "bwd").call
        counted = backward.work(inputs, call(*inputs))
        assert check(backward, workload, call, inputs).ok

    assert workload.group == "Forward"
    assert counted.bytes_read == 8 * 1000 * 4 + 8 * 8 + 8 * 4
    assert (counted.bytes_written, counted.flops) == (8 * 1000 * 4, 8 * 1000 * 3)


def test_our_kernels_are_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("cross_entropy", "triton_cross_entropy"), INTERPRETED)
