"""Inputs and workloads of operators are what real models call them with, and legal when values change."""

import pytest
import torch
from implementations import find, smoke_workload
from torch import Tensor

from kernels_bench_tools.measure.judge.changing_inputs import InputChanges
from kernels_bench_tools.measure.modes import Prepared, changing
from kernels_bench_tools.measure.operator import find_operator


def test_a_smaller_attention_has_the_same_length_modulo_the_block() -> None:
    operator = find_operator("flash_attn")
    for workload in (one for name in operator.workload_sets for one in operator.workloads(name)):
        smaller = operator.smaller(workload).axes
        queries, keys = int(smaller["seq_len"]), int(smaller["kv_len"])
        assert (int(workload.axes["seq_len"]) - queries) % 128 == 0
        assert int(smaller["heads"]) * queries * keys <= 2**25
        assert all(smaller[axis] == workload.axes[axis] for axis in operator.axes[3:])


def test_skewed_rows_belong_mostly_to_the_first_expert_and_edge_cases_use_all_rows() -> None:
    operator = find_operator("grouped_gemm")
    workload = smoke_workload(operator)
    _, _, ends = operator.inputs(workload, "cpu", 0)
    one = smoke_workload(operator, experts=1)
    cases = list(operator.edge_cases(one, operator.inputs(one, "cpu", 0)))

    assert ends[-1] == workload.axes["rows"]
    assert torch.diff(ends, prepend=ends.new_zeros(1)).argmax() == 0
    assert cases
    assert all(case_ends[-1] == len(x) for _, (x, _, case_ends) in cases)


def test_slots_are_those_of_consecutive_tokens_in_blocks_of_their_own_sequence() -> None:
    operator = find_operator("kv_store")
    axes = {"tokens": 60, "sequences": 3, "kv_heads": 1, "head_dim": 1, "blocks": 30, "block_size": 4}
    *_, slots = operator.inputs(smoke_workload(operator, **axes), "cpu", 0)

    blocks, offsets = (slots // 4).view(3, 20), (slots % 4).view(3, 20)
    assert len(slots.unique()) == 60
    assert ((offsets[:, 1:] - offsets[:, :-1]) % 4 == 1).all()
    assert ((blocks[:, 1:] == blocks[:, :-1]) == (offsets[:, 1:] > 0)).all()
    own = [set(row.unique().tolist()) for row in blocks]
    assert len(set.union(*own)) == sum(map(len, own))


def test_blocks_of_a_paged_cache_are_permuted_and_lengths_differ() -> None:
    operator = find_operator("paged_attention")
    _, keys, _, tables, lengths = operator.inputs(smoke_workload(operator), "cpu", 0)

    assert sorted(tables.flatten().tolist()) == list(range(len(keys)))
    assert tables.flatten().tolist() != sorted(tables.flatten().tolist())
    assert lengths[0] == 40
    assert len(lengths.unique()) > 1
    assert lengths.min() >= 10


@pytest.mark.parametrize("name", ["decoder_layer", "causal_lm"])
def test_only_slots_of_new_tokens_change_in_the_cache(name: str) -> None:
    operator = find(name)
    inputs = operator.inputs(smoke_workload(operator, dtype="float32", sequences=3, tokens=1), "cpu", 0)
    number = next(i for i, one in enumerate(inputs) if isinstance(one, Tensor) and one.dim() >= 5)
    slots = next(one for one in inputs[number + 1 :] if isinstance(one, Tensor) and len(one) == 3)
    *_, cache = operator.reference(*inputs)

    changed = (cache != inputs[number]).flatten(-2).any(-1).flatten(-2).flatten(0, -2)
    assert len(changed) > 1
    assert all(row.sum() == 3 for row in changed), slots


@pytest.mark.parametrize("experts", [5, 8, 128])
def test_the_logits_of_a_router_differ_after_rounding_and_nothing_is_prepared_of_them(experts: int) -> None:
    operator = find_operator("moe")
    workload = smoke_workload(operator, dtype="bfloat16", tokens=500, experts=experts)
    inputs = operator.inputs(workload, "cpu", 0)
    given: list[Tensor] = []

    Prepared(operator, lambda *parameters: given.extend(parameters) or parameters)(*inputs)

    assert (inputs[1].sort(dim=-1).values.diff() > 0).all()
    assert [one.shape for one in given] == [inputs[2].shape, inputs[3].shape]
    assert list(changing(operator, "fwd")(inputs)) == [0, 1]


def test_the_logits_of_a_router_stay_different_when_they_change() -> None:
    operator = find_operator("moe")
    inputs = operator.inputs(smoke_workload(operator, dtype="bfloat16"), "cpu", 0)
    positions = changing(operator, "fwd")(inputs)

    logits = InputChanges.of(operator, inputs, positions).apply(inputs, [1])[1]

    assert (logits.sort(dim=-1).values.diff() > 0).all()
    assert torch.equal(*(one.sort(dim=-1).values.sort(dim=0).values for one in (logits, inputs[1])))
    assert not torch.equal(*(one.topk(2, dim=-1).indices for one in (logits, inputs[1])))


def test_inputs_of_edge_cases_are_finite_in_half_precision() -> None:
    operator = find_operator("rms_norm")
    workload = operator.smaller(operator.workloads("trainscale")[0])

    for name, (x, *_) in operator.edge_cases(workload, operator.inputs(workload, "cpu", 0)):
        assert x.isfinite().all(), name


def test_workloads_of_one_group_only_are_selected_by_an_axis() -> None:
    peers = find_operator("activation").workloads("default", {"function": "swiglu"})

    assert {one.group for one in peers} == {"SwiGLU"}
    assert {(one.axes["tokens"], one.axes["hidden_dim"]) for one in peers} == {
        (tokens, hidden_dim) for tokens in (128, 256, 512) for hidden_dim in (768, 1024, 2048)
    }
