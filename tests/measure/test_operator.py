from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import counted
from norms import LAYER_NORM, TINY

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.inputs import padded_rows, transposed
from kernels_bench_tools.measure.operator import Output, find_operator


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: find_operator("layernorm"), "Did you mean 'layer_norm'"),
        (lambda: find_operator("..harness"), "'..harness'"),
        (
            lambda: LAYER_NORM.workloads("cpu,smok"),
            "default, large, decode, cpu, smoke.*Did you mean 'smoke'",
        ),
        (
            lambda: replace(LAYER_NORM, workload_sets={"cpu": [TINY], "smoke": [TINY]}).workloads("smoke"),
            "several workloads named 'tiny'",
        ),
        (
            lambda: replace(LAYER_NORM, inputs=lambda *_: {"x": 1}).made_inputs(TINY, "cpu", 0),
            "returned a dict",
        ),
    ],
)
def test_what_an_operator_cannot_be_asked_for_is_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        wrong()


def test_the_cpu_has_its_own_default_workloads() -> None:
    assert LAYER_NORM.default_sets("cpu") == "cpu"
    assert LAYER_NORM.default_sets("cuda").split(",")[0] == "default"


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    first, again, other = (LAYER_NORM.inputs(TINY, "cpu", seed) for seed in (0, 0, 1))

    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(parameter.std() > 0.5 for parameter in first[1:])  # never ones and zeros


def test_work_counts_each_tensor_once_and_of_others_the_part_that_a_call_touches() -> None:
    numbers = 2 * 8 * 64
    inputs = LAYER_NORM.inputs(TINY, "cpu", 0)
    partly = replace(
        LAYER_NORM,
        unread=(0,),
        partly_read=lambda inputs: {0: 7, 1: 8},
        outputs=(Output(written=lambda inputs: inputs[0].nbytes // 4),),
    )

    work = partly.work(inputs, torch.empty_like(inputs[0]))

    assert counted(LAYER_NORM, TINY) == ((numbers + 2 * 64) * 4, numbers * 4, 7 * numbers)
    assert (work.bytes_read, work.bytes_written) == (8 + 64 * 4, numbers)


def test_the_reference_is_the_formula() -> None:
    x, weight, bias = (value.double() for value in LAYER_NORM.inputs(TINY, "cpu", 0))
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)

    expected = (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    assert torch.allclose(LAYER_NORM.reference(x, weight, bias), expected, rtol=1e-12, atol=1e-12)


def test_the_smaller_workload_has_fewer_rows_of_the_same_length() -> None:
    for workload in LAYER_NORM.workloads("default"):
        smaller = LAYER_NORM.smaller(workload)

        assert smaller.axes["hidden_dim"] == workload.axes["hidden_dim"]
        assert smaller.axes["batch"] * smaller.axes["seq_len"] <= 256


def test_edge_cases_have_names_of_their_own_and_do_not_change_their_inputs() -> None:
    inputs = LAYER_NORM.inputs(TINY, "cpu", 0)
    before = [value.clone() for value in inputs]

    names = [name for name, _ in LAYER_NORM.edge_cases(TINY, inputs)]

    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))
    assert len(names) == len(set(names)) > 5


def test_strided_inputs_have_the_same_values() -> None:
    x = torch.randn(3, 4, 16)

    for made in (transposed(x), padded_rows(x)):
        assert not made.is_contiguous()
        assert made.stride(-1) == 1
        assert torch.equal(made, x)
