"""Operators that return several tensors, or tensors of another type than their inputs."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.correctness.check import Correctness, check
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.operator import Operator, Output, Workload, tensors_of
from kernels_bench_tools.records.record import Flag

WORKLOAD = Workload(name="pair", axes={"rows": 16, "columns": 64}, dtype="float32")


def turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.cos() * y, x.sin() - y


def scaled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x + y).to(torch.bfloat16 if x.dtype != torch.float64 else torch.float64), x.amax(dim=-1)


def make_inputs(workload: Workload, device: str, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (int(workload.axes["rows"]), int(workload.axes["columns"]))
    x, y = torch.randn((2, *shape), generator=generator, device=device)
    return x.clone(), y.clone()


def operator(reference: Callable[..., Any], *outputs: Output) -> Operator:
    return Operator(
        name="pair",
        title="Pair",
        axes=("rows", "columns"),
        workload_sets={"smoke": [WORKLOAD]},
        inputs=make_inputs,
        reference=reference,
        flops=lambda inputs: inputs[0].numel(),
        outputs=outputs,
        slices=lambda inputs: ((row, (inputs[0][row], inputs[1][row])) for row in range(len(inputs[0]))),
        baseline=reference,
    )


TURNED = operator(turned, Output("left"), Output("right"))
SCALED = operator(scaled, Output("sum", "bfloat16"), Output("largest"))


def judge(of: Operator, function: Callable[..., Any]) -> Correctness:
    return check(of, WORKLOAD, function, make_inputs(WORKLOAD, "cpu", 0))


def test_an_implementation_may_return_several_tensors() -> None:
    verdict = judge(TURNED, turned)

    assert verdict.ok, verdict.reason
    assert verdict.flags == []


def test_every_output_is_checked_and_named() -> None:
    verdict = judge(TURNED, lambda x, y: (x.cos() * y, x.sin() + y))

    assert not verdict.ok
    assert "its output 'right' is off" in verdict.reason


def test_a_missing_output_is_named() -> None:
    assert (
        judge(TURNED, lambda x, y: x.cos() * y).reason
        == "it returned 1 output, expected 2, as `outputs` of the operator says"
    )


def test_outputs_in_the_wrong_order_are_wrong() -> None:
    assert not judge(TURNED, lambda x, y: turned(x, y)[::-1]).ok


def test_an_output_may_have_another_type_than_the_inputs() -> None:
    assert judge(SCALED, scaled).ok


def test_an_output_of_another_type_than_declared_is_named() -> None:
    verdict = judge(SCALED, lambda x, y: (x + y, x.amax(dim=-1)))

    assert verdict.reason == "its output 'sum': its dtype is torch.float32, expected torch.bfloat16"


def test_work_counts_all_outputs() -> None:
    inputs = make_inputs(WORKLOAD, "cpu", 0)

    work = SCALED.work(inputs, scaled(*inputs))

    assert work.bytes_read == 2 * 16 * 64 * 4
    assert work.bytes_written == 16 * 64 * 2 + 16 * 4


def inspect(function: Callable[..., Any]) -> list[Flag]:
    guard = Guard("cpu")
    return guard.inspect(TURNED, WORKLOAD, function, make_inputs(WORKLOAD, "cpu", 0))


def test_correct_pairs_are_not_flagged() -> None:
    assert inspect(turned) == []


def test_an_output_in_an_inputs_memory_is_detected() -> None:
    def aliasing(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = turned(x, y)
        return left, torch.as_strided(x, x.shape, x.stride()).copy_(right)

    assert {Flag.ALIASED_OUTPUT, Flag.INPUT_MUTATED} <= set(inspect(aliasing))


def test_an_output_in_the_memory_of_one_of_the_last_four_is_detected() -> None:
    kept = deque(torch.empty(16, 64) for _ in range(4))

    def rotating(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept.rotate()
        left, right = turned(x, y)
        return left, kept[0].copy_(right)

    assert inspect(rotating) == [Flag.ALIASED_OUTPUT]


def test_one_stale_output_is_detected() -> None:
    kept: list[Tensor] = []

    def keeping(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = turned(x, y)
        kept.append(right)
        return left, kept[0]

    assert Flag.STALE_OUTPUT in inspect(keeping)


def test_two_halves_of_one_buffer_are_two_outputs() -> None:
    def halves(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.stack(turned(x, y)))

    assert inspect(halves) == []


@pytest.mark.parametrize(("value", "count"), [((1, 2), 2), ([1], 1), (torch.ones(3), 1)])
def test_a_tensor_is_one_output(value: Any, count: int) -> None:
    assert len(tensors_of(value)) == count


def test_integers_must_be_equal() -> None:
    largest = operator(lambda x, y: x.argmax(dim=-1), Output("largest", "int64"))

    assert judge(largest, lambda x, y: x.argmax(dim=-1)).ok
    wrong = judge(largest, lambda x, y: x.argmax(dim=-1) + 1)
    assert wrong.reason.endswith(" elements beyond the tolerance")


def test_a_reference_with_another_number_of_outputs_is_the_operators_mistake() -> None:
    with pytest.raises(OperatorError, match=r"operator pair: its reference returned 2 outputs\. Expected: 1"):
        judge(operator(turned, Output()), lambda x, y: x.cos() * y)
