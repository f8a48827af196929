import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from norms import LAYER_NORM
from norms import torch_layer_norm as right
from torch import Tensor

from kernels_bench_tools.measure.correctness.check import (
    Case,
    Correctness,
    check,
    check_calls,
)
from kernels_bench_tools.measure.correctness.compare import OutputComparison, OutputErrors, compare
from kernels_bench_tools.measure.correctness.errors import (
    ErrorStats,
    Expected,
    WrongResultError,
    measure_errors,
)
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, find_operator
from kernels_bench_tools.operators.flash_attn import _scores
from kernels_bench_tools.records.record import Flag


def judge(
    function: Callable[..., Any], dtype: str = "float32", operator: Operator = LAYER_NORM
) -> Correctness:
    workload = Workload(name="w", axes={"batch": 2, "seq_len": 16, "hidden_dim": 256}, dtype=dtype)
    return check(operator, workload, function, operator.inputs(workload, "cpu", 0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_is_correct_in_every_dtype_and_edge_case(dtype: str) -> None:
    verdict = judge(right, dtype)

    assert verdict.ok, verdict.reason
    assert verdict.corr["cases"] > 3  # the workload, two more seeds, edge cases
    assert "refused" not in verdict.corr
    assert verdict.flags == []
    assert verdict.corr["error_over_baseline"] == 1
    assert verdict.absmax == pytest.approx(verdict.corr["absmax"], rel=1e-3)
    assert verdict.absmax


def cancelling(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide * wide).mean(-1, keepdim=True) - mean * mean
    return ((wide - mean) * (variance + 1e-5).rsqrt() * weight + bias).to(x.dtype)


def at_public_sizes(x: Tensor, *rest: Tensor) -> Tensor:
    out = right(x, *rest)
    if x.shape[-1] not in (256, 1000, 769, 8, 5000):
        out[..., -1] = 0
    return out


WRONG: list[tuple[Callable[..., Any], str]] = [
    # Outputs that cannot be compared
    (lambda x, w, b: None, "it returned NoneType, expected a tensor"),
    (lambda x, w, b: (right(x, w, b),), "it returned tuple"),
    (lambda x, w, b: right(x, w, b).double(), "its dtype is torch.float64"),
    (lambda x, w, b: right(x, w, b).reshape(-1, 256), "it returned shape"),
    (lambda x, w, b: right(x, w, b)[:1], r".* which has no \[1\], expected shape \(16, 256\) there"),
    (lambda x, w, b: right(x, w, b).sum(), r".* which has no \[0\]"),
    (lambda x, w, b: right(x, w, b).repeat(2, 1, 1), ".* elements, expected"),
    (lambda x, w, b: right(x, w, b).index_fill(0, torch.tensor([0]), float("nan")), ".*NaN or infinity"),
    (lambda x, w, b: torch.full_like(x, float("nan")), ".*NaN or infinity"),
    # Values
    (cancelling, "on large offset: "),
    # Another shape, where the workload is right
    (
        lambda x, *rest: right(x, *rest)[: 2 if x.shape[-1] == 256 else 1],
        r"on shape 3x5x1000: it returned shape \(1, 5, 1000\)",
    ),
    (lambda x, *rest: right(x, *rest) * (x.shape[-1] == 256), "on shape 3x5x1000: .*off by up to"),
    # What is drawn, where all public cases are right
    (at_public_sizes, r"on shape \d+x\d+x\d+, drawn by the judge: "),
    (lambda *given: right(*given).nan_to_num(0.0), "on (nan|-?inf) at "),
]


@pytest.mark.parametrize(("function", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_norm_that_is_wrong_in_some_case_is_incorrect_for_that_reason(
    function: Callable[..., Any], reason: str
) -> None:
    verdict = judge(function)

    assert not verdict.ok
    assert re.match(reason, verdict.reason)
    assert (verdict.absmax is not None) or not reason.startswith("on ")


def test_a_refused_edge_case_is_noted_and_no_error() -> None:
    def picky(x: Tensor, *rest: Any) -> Tensor:
        if x.shape[-1] % 8:
            raise ValueError("hidden size must be a multiple of 8")
        return right(x, *rest)

    verdict = judge(picky)

    assert verdict.ok
    assert verdict.corr["refused"][0] == "shape 2x3x769"
    assert set(verdict.corr["refused"]) <= {"shape 2x3x769", "a drawn shape"}
    assert verdict.corr["refusal"] == "ValueError: hidden size must be a multiple of 8"


def test_an_implementation_without_eps_is_noted_and_one_that_ignores_it_is_wrong() -> None:
    without = judge(lambda x, weight, bias: right(x, weight, bias))

    assert without.ok
    assert without.corr["refused"] == ["eps 1e-06"]
    assert not judge(lambda x, weight, bias, _=1e-5: right(x, weight, bias)).ok


def seeds_of(operator: Operator, size: Workload, count: int) -> list[float]:
    return [float(operator.inputs(size, "cpu", seed)[0].flatten()[0]) for seed in range(count)]


SIZE = Workload(name="w", axes={"batch": 2, "seq_len": 16, "hidden_dim": 256}, dtype="float32")
SMALLER = Workload(name="s", axes={"batch": 1, "seq_len": 8, "hidden_dim": 256}, dtype="float32")


@pytest.mark.parametrize("accepted", [1, 2])
@pytest.mark.parametrize("smaller", [SIZE, SMALLER])
def test_refusing_other_values_of_a_size_that_it_accepts_is_incorrect(
    accepted: int, smaller: Workload
) -> None:
    known = seeds_of(LAYER_NORM, SIZE, accepted) + seeds_of(LAYER_NORM, smaller, accepted)

    def remembering(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if float(x.flatten()[0]) not in known:
            raise ValueError("these values are not supported")
        return right(x, weight, bias)

    verdict = judge(remembering, operator=replace(LAYER_NORM, smaller=lambda _: smaller))

    assert not verdict.ok
    told = "it refused other values of a size that it accepts: ValueError: these values are not supported"
    assert verdict.reason == told


def test_a_smaller_size_that_is_refused_whole_is_noted_and_its_values_are_checked_at_full_size() -> None:
    def large_only(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.shape != (2, 16, 256):
            raise ValueError("only 2 x 16 x 256")
        return right(x, weight, bias)

    def remembering(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return large_only(x, weight, bias) * (float(x.flatten()[0]) in seeds_of(LAYER_NORM, SIZE, 1))

    operator = replace(LAYER_NORM, smaller=lambda _: SMALLER)

    honest = judge(large_only, operator=operator)
    assert honest.ok, honest.reason
    assert honest.corr["refused"][0] == "size 1 x 8 x 256"
    assert judge(remembering, operator=operator).reason.startswith("on seed ")


@pytest.mark.parametrize("name", ["flash_attn", "kv_store", "matmul", "moe", "rotary"])
def test_drawn_shapes_are_those_of_no_workload_for_which_the_operator_has_results(name: str) -> None:
    operator = find_operator(name)
    workload = operator.workloads("smoke")[0]
    operator, shapes = operator.for_workload(workload), []

    def call(case: Case, inputs: Inputs) -> tuple[Any, bool]:
        if case.axes:
            shapes.append(case.axes)
            assert all(
                torch.equal(*pair)
                for pair in zip(case.inputs(operator, workload, "cpu"), inputs, strict=True)
                if isinstance(pair[0], Tensor)
            )
        return operator.baseline(*inputs), False

    assert check_calls(operator, workload, call, operator.inputs(workload, "cpu", 0)).ok
    assert len(shapes) == 2
    known = [one.axes for ones in operator.workload_sets.values() for one in ones]
    same = operator.smaller(workload).axes.items()
    for axes in shapes:
        changed = axes.items() - same
        assert changed
        assert not any(one[axis] == size for axis, size in changed for one in known)
        assert all(axes[axis] % (step or axes[axis]) == 0 for axis, step in operator.multiples.items())
        assert all(axes[axis] == workload.axes[axis] for axis, step in operator.multiples.items() if not step)


@pytest.mark.parametrize(
    ("ratio", "beyond", "baseline", "single", "right"),
    [
        (0.9, 0, None, 1.0, True),
        (1.1, 1, None, 1.0, False),
        (1.1, 1, 0.2, 1.0, True),  # within what is allowed plus twice the baseline's error
        (1.5, 1, 0.2, 1.0, False),
        (1.1, 101, 0.2, 1.0, False),  # fewer than 99.9 % within what is allowed
        (1.1, 100, 0.2, 1.0, True),
        (16.5, 1, 100.0, 1.0, False),  # however wrong torch is
        (15.5, 1, 100.0, 1.0, True),
        (7.9, 100, 0.2, 8.0, True),  # however right torch is
        (7.9, 101, 0.2, 8.0, False),
        (8.1, 1, 0.2, 8.0, False),
    ],
)
def test_limits_on_the_largest_error_and_on_matched_elements(
    ratio: float, beyond: int, baseline: float | None, single: float, right: bool
) -> None:
    found = ErrorStats(ratio=ratio, beyond=beyond, elements=100_000)
    other = None if baseline is None else ErrorStats(ratio=baseline, elements=100_000)
    judged = OutputComparison((OutputErrors(found, other, 1e-7, single=single),))

    if right:
        judged.require_correct()
    else:
        with pytest.raises(WrongResultError):
            judged.require_correct()


@pytest.mark.parametrize(
    ("ratio", "beyond", "right"), [(40.9, 600, True), (41.1, 1, False), (1.5, 601, False)]
)
def test_float32_may_be_as_wrong_as_the_formula_in_float32(ratio: float, beyond: int, right: bool) -> None:
    found = ErrorStats(ratio=ratio, beyond=beyond, elements=100_000)
    formula = ErrorStats(ratio=40.0, beyond=500)  # of twice its errors
    judged = OutputComparison((OutputErrors(found, None, 1e-7, rounding=formula),))

    with nullcontext() if right else pytest.raises(WrongResultError):
        judged.require_correct()


@pytest.mark.parametrize(("error", "accepted"), [(0.0, True), (2.0**-8, False)])
def test_where_torch_has_no_operator_a_single_element_may_be_off_as_in_the_formula(
    error: float, accepted: bool
) -> None:
    attention = find_operator("flash_attn")
    axes = {"batch": 1, "seq_len": 46, "kv_len": 50, "heads": 24, "kv_heads": 8, "head_dim": 128}
    workload = Workload(name="w", axes={**axes, "causal": True}, dtype="float16")
    inputs = attention.inputs(workload, "cpu", 3)
    q, k, v = (one.float() for one in inputs[:3])
    scores = _scores(q, k, True)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()  # that a kernel rounds before the second product
    products = torch.einsum("bhij,bjhd->bihd", weights.half().float(), v.repeat_interleave(3, 2))
    output = (products / weights.sum(-1).transpose(1, 2)[..., None] + error).half()

    compared = compare(output, attention, inputs)

    assert compared.outputs[0].baseline is None
    assert compared.worst.found.ratio > 1
    with nullcontext() if accepted else pytest.raises(WrongResultError):
        compared.require_correct()


@pytest.mark.parametrize(
    ("dtype", "roundings", "accepted"),
    [("float32", 200, True), ("float32", 600, False), ("bfloat16", 2**19, False)],
)
def test_a_single_element_may_lose_more_digits_in_float32_only(
    dtype: str, roundings: int, accepted: bool
) -> None:
    def one_is_off(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = right(x, weight, bias)
        out.view(-1)[out.abs().argmax()] *= 1 + roundings * 2**-23
        return out

    assert judge(one_is_off, dtype).ok == accepted


def test_lost_digits_within_the_tolerance_are_flagged() -> None:
    def two_bits_short(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        exact = right(x, weight, bias)
        bits = (exact.view(torch.int16) + 2) & ~3
        return torch.where(exact.isfinite(), bits.view(x.dtype), exact)

    verdict = judge(two_bits_short, "bfloat16")

    assert verdict.ok, verdict.reason
    assert verdict.flags == [Flag.PRECISION]
    assert verdict.corr["error_over_baseline"] > 2


def test_integers_differ_that_are_the_same_in_float64() -> None:
    found = measure_errors(
        torch.tensor([2**60, 2**60]), Expected(torch.tensor([2**60 + 1, 2**60])), rtol=0.0, least=1e-30
    )

    assert (found.absmax, found.beyond) == (1.0, 1)


def test_an_edge_case_that_needs_too_much_memory_is_not_refused() -> None:
    def greedy(x: Tensor, *rest: Any) -> Tensor:
        if x.shape[-1] == 769:
            raise MemoryError
        return right(x, *rest)

    with pytest.raises(MemoryError):
        judge(greedy)


@pytest.mark.parametrize(("elements", "lost"), [(1, False), (4, False), (64, True), (10_000, True)])
def test_half_an_eps_is_a_lost_digit_in_the_mean_of_many_elements_only(elements: int, lost: bool) -> None:
    eps = 2.0**-23
    found = ErrorStats(absmax=eps, total=elements * eps / 2, elements=elements, largest=1.0, size=elements)
    exact = ErrorStats(elements=elements, largest=1.0, size=elements)

    assert OutputErrors(found, exact, eps).imprecise == lost
