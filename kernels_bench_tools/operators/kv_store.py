"""New keys and values, written to their slots of a paged cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Output,
    Workload,
    copy_tolerance,
    model_sets,
    size_in_bytes,
)

AXES = ("tokens", "sequences", "kv_heads", "head_dim", "blocks", "block_size")
ODD_SHAPES = ((5, 5, 3, 80, 7, 3), (66, 2, 1, 33, 10, 8), (1, 1, 1, 1, 1, 1))


def reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """Return copies of the caches (blocks, block_size, kv_heads, head_dim) with the new keys and values.

    ``key`` and ``value`` are (tokens, kv_heads, head_dim). ``slots`` (tokens,) has for each token its
    block * block_size + offset; all are different.
    """
    flat = (
        cache.flatten(0, 1).index_copy(0, slots, new)
        for new, cache in ((key, key_cache), (value, value_cache))
    )
    keys, values = (cache.view(key_cache.shape) for cache in flat)
    return keys, values


def torch_store(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute :func:`reference` in place, in caches whose blocks follow one another in memory."""
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new)
    return key_cache, value_cache


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random keys, values and caches, and ``slots`` (tokens,) in int64, of consecutive tokens of each sequence.

    The blocks of the cache are dealt out to the sequences in random order, and each sequence continues at a random
    position in its own.
    """
    tokens, sequences, kv_heads, head_dim, blocks, block_size = (int(workload.axes[axis]) for axis in AXES)
    new, cache = (tokens, kv_heads, head_dim), (blocks, block_size, kv_heads, head_dim)
    tensors = helpers.random_tensors((new, new, cache, cache), workload.torch_dtype, device, seed)
    generator = torch.Generator().manual_seed(seed)
    each, length = blocks // sequences, tokens // sequences
    tables = torch.randperm(blocks, generator=generator)[: sequences * each].view(sequences, each)
    first = torch.randint(each * block_size - length + 1, (sequences, 1), generator=generator)
    position = first + torch.arange(length)
    slots = tables.gather(1, position // block_size) * block_size + position % block_size
    return *tensors, slots.flatten().to(device)


def fit(axes: Mapping[str, Any]) -> bool:
    """Return whether as many tokens of each sequence have slots in its blocks."""
    tokens, sequences, blocks = axes["tokens"], axes["sequences"], axes["blocks"]
    return not tokens % sequences and tokens // sequences <= blocks // sequences * axes["block_size"]


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    key, value, *caches, slots = inputs
    keys, values = caches
    count = keys.shape[0] * keys.shape[1]
    first = torch.arange(len(slots), device=slots.device)
    yield "the first slots", (key, value, *caches, first)
    yield "the last slots, backwards", (key, value, *caches, count - 1 - first)
    largest = torch.finfo(key.dtype).max
    yield "large values", (key.sign() * largest, value.sign() * largest, *caches, slots)
    _, new_key, new_value = torch.cat((key, key, value), 1).split(key.shape[1], 1)
    yield "slices of a projection", (new_key, new_value, *caches, slots)
    yield "heads first in memory", (key, value, *(helpers.transposed(cache, 1) for cache in caches), slots)
    pairs = torch.stack((keys, values), 1)
    yield "a block's keys and values side by side", (key, value, pairs[:, 0], pairs[:, 1], slots)
    yield from helpers.odd_shapes(workload, AXES, ODD_SHAPES, make_inputs, key.device)


def head_slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield slices of heads: all of a large cache would not fit in float64."""
    *tensors, slots = inputs
    cache = tensors[2]
    for part in helpers.parts(cache.shape[2], cache[:, :, 0].numel()):
        index = (..., part, slice(None))
        yield index, (*(tensor[index] for tensor in tensors), slots)


_name = "T{tokens}_B{sequences}_KV{kv_heads}_D{head_dim}_{blocks}x{block_size}".format
_workloads = partial(helpers.make_workloads, AXES, _name)

OPERATOR = Operator(
    name="kv_store",
    title="Writing to a KV Cache",
    axes=AXES,
    workload_sets={
        # Heads of Llama 3 8B: a prompt, and several.
        "default": _workloads("bfloat16", "", ((8192, 1, 8, 128, 1024, 16), (8192, 4, 8, 128, 1024, 16))),
        "large": _workloads("bfloat16", "", ((65536, 8, 8, 128, 5120, 16),)),
        "decode": _workloads("bfloat16", "", [(count, count, 8, 128, 2048, 16) for count in (1, 32, 256)]),
        "cpu": _workloads("float32", "cpu_", ((512, 1, 4, 64, 64, 16), (32, 32, 4, 64, 64, 16))),
        "smoke": _workloads("float32", "smoke_", ((12, 3, 2, 32, 9, 4),)),
        **model_sets("kv_store", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda _: 0,
    outputs=tuple(
        Output(
            name,
            tolerance=copy_tolerance,
            shape=lambda inputs: inputs[2].shape,  # of both caches
            written=lambda inputs: size_in_bytes(inputs[0]),
        )
        for name in ("key_cache", "value_cache")
    ),
    slices=head_slices,
    edge_cases=edge_cases,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, tokens=64, sequences=64, blocks=64),
    fit=fit,
    nonfinite=helpers.any_number(0, 1, 2, 3),
    unread=(2, 3),
)
