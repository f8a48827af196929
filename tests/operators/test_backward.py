"""Backward passes: what our kernels return as gradients, and what is called wrong."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from implementations import assert_correct, code_of, judge, smoke_workload
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import Operator, find_operator

# Sizes in the order of the operator's axes, one in each type: several rows for a program, widths that fill no tile, single
# rows, and rows that are longer than a program's registers. The smoke workload comes first, with edge cases.
SIZES: dict[tuple[str, str], list[list[Any]]] = {
    ("layer_norm", "triton_layer_norm"): [[1, 3, 2100], [1, 3, 769], [1, 40, 96]],
    ("activation", "triton_swiglu"): [["swiglu", 5, 1100], ["swiglu", 9, 130]],
    ("activation", "triton_gelu"): [
        [kind, *size] for kind in ("gelu_tanh", "gelu") for size in ((5, 1100), (9, 130))
    ],
    ("rotary", "triton_rotary"): [[1, 3, 12, 3, 80], [1, 2, 34, 2, 128], [3, 1, 1, 1, 2]],
    ("cross_entropy", "triton_cross_entropy"): [["forward", 1, 40001], ["forward", 3, 20000]],
    ("embedding", "triton_embedding"): [[5, 7, 1100], [300, 5, 130]],
}

INTERPRETED = """
import json
from kernels_bench_tools.measure.inputs import padded_rows, transposed
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import tensors_of

for name in ("LONGEST_IN_REGISTERS_BACKWARD", "CHUNK"):
    if hasattr(cell, name):
        setattr(cell, name, 1024)  # Shorter rows go the way of long ones: a program takes 32 columns when it sums up.
operator, kernel, sizes = find_operator(sys.argv[1]), getattr(cell, sys.argv[2]), json.loads(sys.argv[3])
backward = in_mode(operator, "bwd")
passes = timed_function(operator, kernel, "bwd")
count = len(operator.outputs)


def strided(workload, inputs):
    given, upstream = inputs[:-count], inputs[-count:]
    if upstream[0].dim() > 1:
        yield "padded gradients", (*given, *map(padded_rows, upstream))
        yield "transposed gradients", (*given, *map(transposed, upstream))
    yield "one gradient for all", (*given, *(value.flatten()[0].expand(value.shape) for value in upstream))


def hard(workload, inputs):
    yield from strided(workload, inputs)
    generator = torch.Generator().manual_seed(7)
    for name, case in operator.edge_cases(workload, inputs[:-count]):
        outputs = zip(operator.outputs, tensors_of(operator.reference(*case)))
        upstream = (torch.randn(o.shape, generator=generator).to(operator.dtype_of(kind, case)) for kind, o in outputs)
        yield name, (*case, *upstream)


def few_rows(workload):  # The interpreter takes a millisecond for each line of each program.
    few = {axis: 2 for axis in ("seq_len", "tokens") if workload.axes.get(axis, 0) > 2}
    return replace(workload, axes={**workload.axes, **few})


def examine(workload, cases, precise=False):
    of = replace(backward.for_workload(workload), edge_cases=cases, smaller=few_rows)
    verdict = judge(of, workload, passes.call)
    # Other bits the second time, or inputs that changed, would be flags as well.
    assert set(verdict.flags) <= (set() if precise else {"precision"}), (workload, verdict.flags, verdict.corr)


def differentiate_twice(workload):
    outputs, leaves, upstream = passes.prepare(*backward.inputs(workload, "cpu", 0))
    with torch.enable_grad():
        upstream = [value.requires_grad_() for value in upstream]
        first, *_ = torch.autograd.grad(outputs, leaves, upstream, create_graph=True)
        first.sum().backward()


judged = 0
torch.set_grad_enabled(False)
for workload in backward.workloads("smoke"):
    mine = [size for size in sizes if size[0] == workload.axes.get("function", size[0])]
    # Edge cases in the type with the smallest range. The interpreter truncates bfloat16.
    for dtype, cases in (("float16", hard), ("float32", no_edge_cases)) if mine else ():
        examine(few_rows(replace(workload, dtype=dtype)), cases, precise=True)
    for number, size in enumerate(mine):
        axes = dict(zip(operator.axes, size))
        dtype = ("float32", "float16", "bfloat16")[number % 3]
        # In a single row one rounding is in all of the errors.
        examine(replace(workload, axes=axes, dtype=dtype), strided if dtype == "float16" else no_edge_cases)
        judged += 1
    try:
        differentiate_twice(workload) if mine else None
    except RuntimeError as error:
        assert "once_differentiable" in str(error), error
    else:
        assert not mine, "a gradient that carries none was differentiated"
print(judged)
"""


@pytest.mark.parametrize(("operator", "name"), SIZES)
def test_our_gradients_are_correct_in_the_interpreter(
    interpret: Callable[..., str], operator: str, name: str
) -> None:
    sizes = SIZES[operator, name]
    printed = interpret(code_of(operator, name), INTERPRETED, operator, name, json.dumps(sizes))
    assert printed == str(len(sizes))


def passes(operator: str, group: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the backward pass of a function that is called as the operator's."""
    return timed_function(forward_of(operator, group), function, "bwd").call


def forward_of(operator: str, group: str) -> Operator:
    found = find_operator(operator)
    return found.for_workload(smoke_workload(found, group))


def of_upstream(
    operator: str, group: str, change: Callable[[Tensor], Tensor], number: int = -1
) -> Callable[..., Any]:
    """Return the right backward pass, called with another gradient, or another input."""

    def call(*given: Any) -> Any:
        changed = list(given)
        changed[number] = change(given[number])
        return passes(operator, group, forward_of(operator, group).baseline)(*changed)

    return call


SWIGLU, TANH, LOSS = ("activation", "SwiGLU"), ("activation", "GELU (tanh)"), ("cross_entropy", "Forward")
WRONG: dict[str, tuple[tuple[str, str], Callable[..., Any]]] = {
    "erf for tanh": (TANH, passes(*TANH, lambda x, _: functional.gelu(x))),
    "a gradient of ignored tokens": (
        LOSS,
        passes(*LOSS, lambda x, target: functional.cross_entropy(x, target.clamp(min=0), reduction="none")),
    ),
    "a gradient read as if it had no gaps": (LOSS, of_upstream(*LOSS, lambda g: g.as_strided(g.shape, (1,)))),
    "rows read as if one followed the other": (
        SWIGLU,
        of_upstream(*SWIGLU, lambda x: x.as_strided(x.shape, (x.shape[1], 1)), number=0),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_gradient_is_incorrect(wrong: str) -> None:
    (operator, group), function = WRONG[wrong]
    found = find_operator(operator)

    verdict = judge(in_mode(found, "bwd"), group, "float32", function)

    assert not verdict.ok
    right = passes(operator, group, forward_of(operator, group).baseline)
    assert_correct(judge(in_mode(found, "bwd"), group, "float32", right))
