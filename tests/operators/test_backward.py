"""Backward passes: what our kernels return as gradients, and what is called wrong."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, judge
from torch import Tensor

from kernels_bench_tools.measure.correctness.check import Correctness
from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import find_operator, tensors_of

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


def layer_norm_gradients(x: Tensor, weight: Tensor, bias: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    """The formulas written out: nothing here is torch's own backward pass."""
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    normal, weighted = centred * scale, upstream * weight
    slope = (weighted * normal).mean(-1, keepdim=True)
    gradient = (weighted - weighted.mean(-1, keepdim=True) - normal * slope) * scale
    assert bias.shape == weight.shape
    return gradient, (upstream * normal).sum((0, 1)), upstream.sum((0, 1))


def swiglu_gradient(x: Tensor, upstream: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    part = gate.sigmoid()
    return torch.cat((upstream * up * part * (1 + gate * (1 - part)), upstream * gate * part), -1)


def gelu_gradient(x: Tensor, approximate: str, upstream: Tensor) -> Tensor:
    if approximate == "none":
        tail = torch.special.erfc(-x / 2**0.5) / 2
        return upstream * (tail + x * torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5)
    root = (2 / torch.pi) ** 0.5
    part = torch.sigmoid(2 * root * (x + 0.044715 * x**3))
    return upstream * (part + 2 * x * part * (1 - part) * root * (1 + 3 * 0.044715 * x * x))


def rotary_gradients(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_upstream: Tensor, k_upstream: Tensor
) -> Any:
    assert (q.shape, k.shape) == (q_upstream.shape, k_upstream.shape)
    return find_operator("rotary").reference(q_upstream, k_upstream, cos, -sin)


def cross_entropy_gradient(logits: Tensor, target: Tensor, upstream: Tensor) -> Tensor:
    one_hot = torch.zeros_like(logits).scatter(1, target.clamp(min=0)[:, None], 1.0)
    return (logits.softmax(-1) - one_hot) * torch.where(target < 0, 0, upstream)[:, None]


FORMULAS: list[tuple[str, str, Callable[..., Any]]] = [
    ("layer_norm", "", layer_norm_gradients),
    ("activation", "SwiGLU", swiglu_gradient),
    ("activation", "GELU (tanh)", gelu_gradient),
    ("activation", "GELU (erf)", gelu_gradient),
    ("rotary", "", rotary_gradients),
    ("cross_entropy", "Forward", cross_entropy_gradient),
]


def judge_gradients(operator: str, group: str, dtype: str, function: Callable[..., Any]) -> Correctness:
    """Return whether a function of an operator's inputs and its results' gradients returns the right gradients."""
    return judge(in_mode(find_operator(operator), "bwd"), group, dtype, function)


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes in float32 and rounds once, to the type of its first argument."""

    def rounded(*given: Any) -> Any:
        wide = [v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for v in given]
        found = tensors_of(function(*wide))
        narrow = tuple(value.to(given[0].dtype) for value in found)
        return narrow if len(narrow) > 1 else narrow[0]

    return rounded


@pytest.mark.parametrize(("operator", "group", "formula"), FORMULAS)
def test_the_formulas_of_the_notebooks_are_correct(
    operator: str, group: str, formula: Callable[..., Any]
) -> None:
    assert_correct(judge_gradients(operator, group, "bfloat16", in_float32(formula)))


def layer_norm_with(number: int, change: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def wrong(*given: Tensor) -> tuple[Tensor, ...]:
        found = list(layer_norm_gradients(*given))
        found[number] = change(found[number])
        return tuple(found)

    return wrong


WRONG: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "a row too few for the weight": (
        "layer_norm",
        "",
        layer_norm_with(1, lambda gradient: gradient * 63 / 64),
    ),
    "a sigmoid for SiLU's derivative": (
        "activation",
        "SwiGLU",
        lambda x, g: torch.cat((g * x[:, 256:] * x[:, :256].sigmoid(), swiglu_gradient(x, g)[:, 256:]), -1),
    ),
    "the halves swapped": ("activation", "SwiGLU", lambda x, g: swiglu_gradient(x, g).roll(256, -1)),
    "erf for tanh": ("activation", "GELU (tanh)", lambda x, _, g: gelu_gradient(x, "none", g)),
    "rotated forward": ("rotary", "", lambda q, k, cos, sin, *g: rotary_gradients(q, k, cos, -sin, *g)),
    "a gradient of ignored tokens": (
        "cross_entropy",
        "Forward",
        lambda x, target, g: cross_entropy_gradient(x, target.clamp(min=0), g),
    ),
    "a gradient read as if it had no gaps": (
        "cross_entropy",
        "Forward",
        lambda x, target, g: cross_entropy_gradient(x, target, g.as_strided(g.shape, (1,))),
    ),
    "rows read as if one followed the other": (
        "activation",
        "SwiGLU",
        lambda x, g: swiglu_gradient(x.as_strided(x.shape, (x.shape[1], 1)), g),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_gradient_is_incorrect(wrong: str) -> None:
    operator, group, function = WRONG[wrong]

    assert not judge_gradients(operator, group, "float32", in_float32(function)).ok
