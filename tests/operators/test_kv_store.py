"""Writes to a paged cache: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, counted, function_of, judge
from torch import Tensor

from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.operators.kv_store import reference, torch_store
from kernels_bench_tools.records.record import Flag

OPERATOR: Operator = find_operator("kv_store")
IN_PLACE = OPERATOR.adapted(in_place=True)
SMOKE = OPERATOR.workloads("smoke")[0]
INTERPRETED = """
operator = find_operator("kv_store").adapted(in_place=True)
smoke = operator.workloads("smoke")[0]
for dtype, most in (("float32", 1024), ("bfloat16", 16)):
    cell.MOST_COLUMNS = most
    workload = replace(smoke, dtype=dtype)
    assert not judge(operator, workload, cell.triton_kv_store).flags
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("torch_index_copy", ["heads first in memory", "a block's keys and values side by side"]),
        ("torch_index_put", None),
    ],
)
def test_torch_is_correct_in_caches_of_the_layouts_that_it_takes(
    name: str, refused: list[str] | None, dtype: str
) -> None:
    verdict = judge(IN_PLACE, "", dtype, function_of("kv_store", name))

    assert_correct(verdict)
    assert verdict.corr.get("refused") == refused


WRONG: dict[str, Callable[..., Any]] = {
    "nothing": lambda key, value, keys, values, slots: (keys, values),
    "values not written": lambda key, value, keys, values, slots: (
        torch_store(key, value, keys, values.clone(), slots)[0],
        values,
    ),
    "keys as values": lambda key, value, *rest: torch_store(key, key, *rest),
    "the next slot": lambda key, value, keys, values, slots: torch_store(
        key, value, keys, values, (slots + 1) % (keys.shape[0] * keys.shape[1])
    ),
    "the last token forgotten": lambda key, value, keys, values, slots: torch_store(
        key[:-1], value[:-1], keys, values, slots[:-1]
    ),
    "a slot more": lambda key, value, keys, values, slots: torch_store(
        torch.cat((key, key[:1])),
        torch.cat((value, value[:1])),
        keys,
        values,
        torch.cat((slots, unused(slots))),
    ),
}


def unused(slots: Tensor) -> Tensor:
    return torch.tensor([next(slot for slot in range(len(slots) + 1) if slot not in slots)])


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_write_is_incorrect(wrong: str) -> None:
    assert not judge(IN_PLACE, "", "bfloat16", WRONG[wrong]).ok


def test_writing_in_place_has_to_be_declared() -> None:
    assert (
        Flag.INPUT_MUTATED in judge(OPERATOR, "", "float32", function_of("kv_store", "torch_index_put")).flags
    )
    assert judge(OPERATOR, "", "float32", reference).flags == []


def test_slots_are_those_of_consecutive_tokens_in_blocks_of_their_own_sequence() -> None:
    axes = {"tokens": 60, "sequences": 3, "kv_heads": 1, "head_dim": 1, "blocks": 30, "block_size": 4}
    *_, slots = OPERATOR.inputs(replace(SMOKE, axes=axes), "cpu", 0)

    blocks, offsets = (slots // 4).view(3, 20), (slots % 4).view(3, 20)
    assert len(slots.unique()) == 60
    assert ((offsets[:, 1:] - offsets[:, :-1]) % 4 == 1).all()
    assert ((blocks[:, 1:] == blocks[:, :-1]) == (offsets[:, 1:] > 0)).all()
    assert len({block for row in blocks for block in row.unique().tolist()}) == sum(
        len(row.unique()) for row in blocks
    )


def test_only_slots_that_are_written_count() -> None:
    new = 12 * 2 * 32 * 4
    assert counted(OPERATOR, SMOKE)[:2] == (2 * new + 12 * 8, 2 * new)


def test_our_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("kv_store", "triton_kv_store"), INTERPRETED)
