from dataclasses import replace

import pytest
import torch
from implementations import counted
from norms import LAYER_NORM, TINY

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.inputs import SPIKE, padded_rows, spikes, transposed
from kernels_bench_tools.measure.operator import Output, dtype_tolerance, find_operator


def test_an_operator_is_found_by_its_module_name() -> None:
    assert find_operator("layer_norm").name == "layer_norm"


def test_an_unknown_operator_suggests_the_nearest_name() -> None:
    with pytest.raises(OperatorError, match=r"operator 'layernorm'.*Did you mean 'layer_norm'"):
        find_operator("layernorm")


def test_an_operator_cannot_be_a_path_into_another_module() -> None:
    with pytest.raises(OperatorError):
        find_operator("..harness")


def test_an_unknown_workload_set_lists_the_known_ones() -> None:
    with pytest.raises(OperatorError, match=r"default, large, decode, cpu, smoke.*Did you mean 'smoke'"):
        LAYER_NORM.workloads("cpu,smok")


def test_workloads_of_one_name_are_refused() -> None:
    double = replace(LAYER_NORM, workload_sets={"cpu": [TINY], "smoke": [TINY]})

    with pytest.raises(OperatorError, match=r"several workloads named 'tiny'"):
        double.workloads("smoke")


def test_inputs_that_are_no_tuple_are_refused() -> None:
    by_name = replace(LAYER_NORM, inputs=lambda *_: {"x": torch.ones(2)})

    with pytest.raises(OperatorError, match=r"`inputs` returned a dict\. Expected: A tuple"):
        by_name.made_inputs(TINY, "cpu", 0)


def test_the_cpu_has_its_own_default_workloads() -> None:
    assert LAYER_NORM.default_sets("cpu") == "cpu"
    assert LAYER_NORM.default_sets("cuda").split(",")[0] == "default"


def test_a_described_workload_has_the_keys_of_a_record() -> None:
    assert TINY.describe("cpu") == {
        "name": "tiny",
        "batch": 2,
        "seq_len": 8,
        "hidden_dim": 64,
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
    }


def test_the_default_workloads_are_those_of_kernels_benchmarks() -> None:
    workloads = LAYER_NORM.workloads("default")

    assert [workload.name for workload in workloads] == [
        "LN_B16_S2048_D4096",
        "LN_B16_S2048_D8192",
        "LN_B16_S4096_D4096",
        "LN_B16_S4096_D8192",
    ]
    assert {workload.dtype for workload in workloads} == {"bfloat16"}
    assert {workload.axes["batch"] for workload in workloads} == {16}


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    first, again, other = (LAYER_NORM.inputs(TINY, "cpu", seed) for seed in (0, 0, 1))

    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_weight_and_bias_are_never_ones_and_zeros() -> None:
    _, weight, bias = LAYER_NORM.inputs(TINY, "cpu", 0)

    assert weight.std() > 0.5
    assert bias.std() > 0.5


def test_work_counts_each_tensor_once() -> None:
    numbers = 2 * 8 * 64
    assert counted(LAYER_NORM, TINY) == ((numbers + 2 * 64) * 4, numbers * 4, 7 * numbers)


def test_of_tensors_that_a_call_touches_in_part_only_that_part_is_work() -> None:
    inputs = LAYER_NORM.inputs(TINY, "cpu", 0)
    rows = replace(
        LAYER_NORM,
        unread=(0,),
        partly_read=lambda inputs: {0: 7, 1: 8},
        outputs=(Output(written=lambda inputs: inputs[0].nbytes // 4),),
    )

    work = rows.work(inputs, torch.empty_like(inputs[0]))

    assert work.bytes_read == 8 + 64 * 4
    assert work.bytes_written == 2 * 8 * 64


def test_the_reference_is_the_formula() -> None:
    x, weight, bias = (value.double() for value in LAYER_NORM.inputs(TINY, "cpu", 0))
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)

    expected = (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    assert torch.allclose(LAYER_NORM.reference(x, weight, bias), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tolerance_follows_the_precision_of_the_type(dtype: torch.dtype) -> None:
    tolerance = dtype_tolerance(dtype)

    assert torch.finfo(dtype).eps < tolerance.rtol < 64 * torch.finfo(dtype).eps


def test_the_smaller_workload_has_fewer_rows_of_the_same_length() -> None:
    for workload in LAYER_NORM.workloads("default"):
        smaller = LAYER_NORM.smaller(workload)

        assert smaller.axes["hidden_dim"] == workload.axes["hidden_dim"]
        assert smaller.axes["batch"] * smaller.axes["seq_len"] <= 256
        assert smaller.dtype == workload.dtype


def test_edge_cases_do_not_change_their_inputs() -> None:
    inputs = LAYER_NORM.inputs(TINY, "cpu", 0)
    before = [value.clone() for value in inputs]

    names = [name for name, _ in LAYER_NORM.edge_cases(TINY, inputs)]

    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))
    assert len(names) == len(set(names)) == 14


def test_spikes_reach_the_last_columns_of_the_last_rows() -> None:
    found = spikes(torch.randn(2, 5, 64))

    where = (found == SPIKE).nonzero()[:, -1].tolist()
    assert len(where) == 10
    assert where[-3:] == [61, 62, 63]


def test_strided_inputs_have_the_same_values() -> None:
    x = torch.randn(3, 4, 16)

    for made in (transposed(x), padded_rows(x)):
        assert not made.is_contiguous()
        assert made.stride(-1) == 1
        assert torch.equal(made, x)
