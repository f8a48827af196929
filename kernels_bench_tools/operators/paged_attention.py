"""Attention of one new token of each sequence to a paged cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, model_sets, size_in_bytes
from kernels_bench_tools.operators import flash_attn

AXES = ("sequences", "context", "heads", "kv_heads", "head_dim", "block_size", "even")
ODD_SHAPES = ((3, 41, 6, 2, 64, 5, False), (1, 1, 2, 2, 32, 1, True), (2, 130, 8, 1, 128, 32, False))


def reference(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
) -> Tensor:
    """Return (sequences, heads, head_dim), the shape of ``query``: each attends to the tokens of its sequence.

    Caches are (blocks, block_size, kv_heads, head_dim). ``block_tables`` (sequences, blocks of each) has the blocks
    of a sequence in order; ``seq_lens`` (sequences,) is how many of their tokens belong to it.
    """
    outputs = []
    for one, table, length in zip(query, block_tables, seq_lens.tolist(), strict=True):
        keys, values = (cache[table].flatten(0, 1)[None, :length] for cache in (key_cache, value_cache))
        outputs.append(flash_attn.reference(one[None, None], keys, values, False)[0, 0])
    return torch.stack(outputs)


def torch_paged(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
) -> Tensor:
    """Compute :func:`reference` with torch: gather all blocks of the tables, and mask what is no token."""
    keys, values = (cache[block_tables].flatten(1, 2).transpose(1, 2) for cache in (key_cache, value_cache))
    seen = torch.arange(keys.shape[2], device=query.device) < seq_lens[:, None]
    grouped = query.shape[1] != keys.shape[1]
    attention = functional.scaled_dot_product_attention
    output = attention(query[:, :, None], keys, values, attn_mask=seen[:, None, None], enable_gqa=grouped)
    return output[:, :, 0]


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``query`` and caches, ``block_tables`` and ``seq_lens`` in int64.

    The blocks are dealt out in random order. Lengths are the context, or uneven: random from a quarter of it, of
    which the first is the whole. All entries of the tables are blocks of the cache.
    """
    sequences, context, heads, kv_heads, head_dim, size = (int(workload.axes[axis]) for axis in AXES[:-1])
    each = -(-context // size)
    cache = (sequences * each, size, kv_heads, head_dim)
    tensors = helpers.random_tensors(
        ((sequences, heads, head_dim), cache, cache), workload.torch_dtype, device, seed
    )
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randperm(sequences * each, generator=generator).view(sequences, each)
    lengths = torch.full((sequences,), context)
    if not workload.axes["even"]:
        lengths[1:] = torch.randint(-(-context // 4), context + 1, (sequences - 1,), generator=generator)
    return *tensors, tables.to(device), lengths.to(device)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    query, keys, values, tables, lengths = inputs
    rest = (tables, lengths)
    yield "queries x30", (query * 30, keys, values, *rest)  # exp overflows unless the maximum is subtracted
    yield "one token each", (query, keys, values, tables, torch.ones_like(lengths))
    huge = keys.clone()
    huge[tables[:, -1], -1] = torch.finfo(keys.dtype).max ** 0.5  # in the last slots, of no sequence
    slots = tables.shape[1] * keys.shape[1]
    yield "large keys after the end", (query, huge, values, tables, lengths.clamp(max=slots - 1))
    shared = torch.cat((tables[:1, :1].expand(len(tables), 1), tables[:, 1:]), 1)
    yield "a shared first block", (query, keys, values, shared, lengths)
    yield "padded heads", (*helpers.padded_differently(query, keys, values), *rest)
    yield "heads first in memory", (query, helpers.transposed(keys, 1), helpers.transposed(values, 1), *rest)
    pairs = torch.stack((keys, values), 1)
    yield "a block's keys and values side by side", (query, pairs[:, 0], pairs[:, 1], *rest)
    yield "int32 tables and lengths", (query, keys, values, tables.int(), lengths.int())
    yield from helpers.odd_shapes(workload, AXES, ODD_SHAPES, make_inputs, query.device)


def slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield one sequence at a time, with its blocks only: the cache would not fit in float64."""
    query, keys, values, tables, lengths = inputs
    for number, table in enumerate(tables):
        part = slice(number, number + 1)
        own = torch.arange(len(table), device=tables.device)[None]
        yield part, (query[part], keys[table], values[table], own, lengths[part])


def flops(inputs: Inputs) -> int:
    """Count two multiply-adds per head, token and element."""
    query, *_, lengths = inputs
    return int(4 * query.shape[1] * query.shape[2] * lengths.sum())


def bytes_of_tokens(inputs: Inputs) -> dict[int, int]:
    """Return the bytes of the keys and values of the sequences' tokens, and of the entries of the tables."""
    _, keys, values, tables, lengths = inputs
    tokens, blocks = int(lengths.sum()), int((-(-lengths // keys.shape[1])).sum())
    of_caches = {n: tokens * size_in_bytes(cache[0, 0]) for n, cache in ((1, keys), (2, values))}
    return of_caches | {3: blocks * tables.element_size()}


def _name(even: bool, **sizes: int) -> str:
    shape = "B{sequences}_KV{context}_H{heads}_{kv_heads}_D{head_dim}_P{block_size}"
    return ("" if even else "Uneven_") + shape.format(**sizes)


_workloads = partial(helpers.make_workloads, AXES, _name)

_LLAMA = (32, 8, 128, 16)
"""Heads, heads of the cache and their size in Llama 3 8B; tokens in a block."""

OPERATOR = Operator(
    name="paged_attention",
    title="Attention to a Paged Cache",
    axes=AXES,
    workload_sets={
        "default": _workloads(
            "bfloat16", "", ((1, 8192, *_LLAMA, True), (32, 1024, *_LLAMA, True), (32, 4096, *_LLAMA, False))
        ),
        "large": _workloads("bfloat16", "", ((1, 131072, *_LLAMA, True), (128, 4096, *_LLAMA, False))),
        "cpu": _workloads("float32", "cpu_", ((1, 1024, 8, 2, 64, 16, True), (8, 512, 8, 2, 64, 16, False))),
        "smoke": _workloads("float32", "smoke_", ((3, 40, 4, 2, 32, 8, False),)),
        **model_sets("paged_attention", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=flops,
    slices=slices,
    edge_cases=edge_cases,
    tolerance=flash_attn.tolerance,
    baseline=torch_paged,
    smaller=partial(helpers.limit_axes, sequences=3, context=300),
    multiples={"heads": 0, "kv_heads": 0, "head_dim": 0},  # properties of the model
    nonfinite={"nan": (0,)},
    partly_read=bytes_of_tokens,
)
