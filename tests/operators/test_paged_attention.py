"""Attention to a paged cache: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, function_of, judge
from torch import Tensor

from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.operators.paged_attention import torch_paged

OPERATOR: Operator = find_operator("paged_attention")
SMOKE = OPERATOR.workloads("smoke")[0]
# Interpreted, where tl.dot takes no bfloat16; with one program for each head, and with several.
INTERPRETED = """
operator = find_operator("paged_attention")
smoke = operator.workloads("smoke")[0]
for dtype, per_split, step in (("float32", 256, 16), ("float16", 16, 16)):
    cell.TOKENS_PER_SPLIT, cell.tiling = per_split, lambda *_: (99, step)
    workload = replace(smoke, dtype=dtype)
    assert not judge(operator, workload, cell.triton_paged_attention).flags
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_is_correct_in_every_dtype_and_edge_case(dtype: str) -> None:
    assert_correct(judge(OPERATOR, "", dtype, function_of("paged_attention", "torch_gather")), edge_cases=11)


def in_order(tables: Tensor) -> Tensor:
    return torch.arange(tables.numel()).view(tables.shape)


WRONG: dict[str, Callable[..., Any]] = {
    "all zero": lambda query, *rest: torch.zeros_like(query),
    "blocks in the order of the cache": lambda q, k, v, tables, lengths: torch_paged(
        q, k, v, in_order(tables), lengths
    ),
    "all lengths the longest": lambda q, k, v, tables, lengths: torch_paged(
        q, k, v, tables, lengths.max().expand_as(lengths)
    ),
    "the last token forgotten": lambda q, k, v, tables, lengths: torch_paged(
        q, k, v, tables, (lengths - 1).clamp(min=1)
    ),
    "key heads in turn": lambda q, k, v, tables, lengths: torch_paged(
        q.unflatten(1, (-1, k.shape[2])).transpose(1, 2).flatten(1, 2), k, v, tables, lengths
    ),
    "keys as values": lambda q, k, v, tables, lengths: torch_paged(q, k, k, tables, lengths),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_result_is_incorrect(wrong: str) -> None:
    assert not judge(OPERATOR, "", "bfloat16", WRONG[wrong]).ok


def test_blocks_are_permuted_and_lengths_differ() -> None:
    _, keys, _, tables, lengths = OPERATOR.inputs(SMOKE, "cpu", 0)

    assert sorted(tables.flatten().tolist()) == list(range(len(keys)))
    assert tables.flatten().tolist() != sorted(tables.flatten().tolist())
    assert lengths[0] == 40
    assert len(lengths.unique()) > 1
    assert lengths.min() >= 10


def test_only_tokens_of_the_sequences_count() -> None:
    query, keys, values, tables, _ = OPERATOR.inputs(SMOKE, "cpu", 0)
    lengths = torch.tensor([40, 9, 1])
    inputs = (query, keys, values, tables, lengths)

    work = OPERATOR.work(inputs, query)

    of_query, token = 3 * 4 * 32 * 4, 2 * 32 * 4
    assert work.bytes_read == of_query + 2 * 50 * token + (5 + 2 + 1) * 8 + 3 * 8
    assert work.bytes_written == of_query
    assert work.flops == 4 * 4 * 32 * 50


def test_our_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("paged_attention", "triton_paged_attention"), INTERPRETED)
