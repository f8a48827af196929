"""Operators that return several tensors, or tensors of another type than their inputs."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.correctness.compare import compare
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.operator import Operator, Output, Workload
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
LARGEST = operator(lambda x, y: x.argmax(dim=-1), Output("largest", "int64"))


@pytest.mark.parametrize(
    ("of", "function", "reason"),
    [
        (TURNED, turned, ""),
        (TURNED, lambda x, y: (x.cos() * y, x.sin() + y), "its output 'right' is off"),
        (TURNED, lambda x, y: x.cos() * y, "it returned 1 output, expected 2"),
        (TURNED, lambda x, y: turned(x, y)[::-1], "off by"),
        (SCALED, scaled, ""),
        (SCALED, lambda x, y: (x + y, x.amax(dim=-1)), "its output 'sum': its dtype is torch.float32"),
        (LARGEST, lambda x, y: x.argmax(dim=-1), ""),
        (LARGEST, lambda x, y: x.argmax(dim=-1) + 1, "elements beyond the tolerance"),
    ],
)
def test_every_output_is_compared_and_named(of: Operator, function: Callable[..., Any], reason: str) -> None:
    verdict = check(of, WORKLOAD, function, make_inputs(WORKLOAD, "cpu", 0))

    assert verdict.ok == (not reason)
    assert reason in verdict.reason


def test_a_reference_with_another_number_of_outputs_is_the_operators_mistake() -> None:
    of = operator(turned, Output())

    inputs = make_inputs(WORKLOAD, "cpu", 0)

    with pytest.raises(OperatorError, match=r"its reference returned 2 outputs\. Expected: 1"):
        compare(inputs[0].cos() * inputs[1], of, inputs)
    assert "reference returned 2 outputs" in check(of, WORKLOAD, lambda x, y: x.cos() * y, inputs).reason


def inspect(function: Callable[..., Any]) -> list[Flag]:
    guard = Guard("cpu")
    return guard.inspect(TURNED, function, make_inputs(WORKLOAD, "cpu", 0))


def halves(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.stack(turned(x, y)))


@pytest.mark.parametrize("honest", [turned, halves], ids=["two tensors", "two halves of one buffer"])
def test_correct_pairs_are_not_flagged(honest: Callable[..., Any]) -> None:
    assert inspect(honest) == []


def test_an_output_in_an_inputs_memory_is_detected() -> None:
    def aliasing(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = turned(x, y)
        return left, torch.as_strided(x, x.shape, x.stride()).copy_(right)

    assert inspect(aliasing) == [Flag.ALIASED_OUTPUT]
    assert Flag.INPUT_MUTATED in check(TURNED, WORKLOAD, aliasing, make_inputs(WORKLOAD, "cpu", 0)).flags


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

    assert not check(TURNED, WORKLOAD, keeping, make_inputs(WORKLOAD, "cpu", 0)).ok
