"""Scaled dot-product attention: full or causal, with as many key heads as query heads or fewer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.inputs import constant_rows, padded_rows
from kernels_bench_tools.measure.operator import Inputs, Operator, Tolerance, Workload, dtype_tolerance

AXES = ("batch", "seq_len", "kv_len", "heads", "kv_heads", "head_dim", "causal")
SCORES_AT_ONCE = 2**25
"""So many scores take 268 MB in float64, and a reference holds a few tensors of them."""
SHORT = 256
ODD_LENGTH = 113
FEW_QUERIES = 7
Case = tuple[str, Inputs]


def reference(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Return ``softmax(q k^T / sqrt(D)) v``, for each head by itself.

    Args:
        q: (batch, seq_len, heads, head_dim).
        k: (batch, kv_len, kv_heads, head_dim); query head h reads key head ``h // (heads // kv_heads)``.
        v: Like ``k``.
        causal: Whether query i sees only the keys up to ``i + kv_len - seq_len``: the last query sees all of them.
    """
    scores = torch.einsum("bihd,bjhd->bhij", q, _for_each_head(k, q)) * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~seen.tril(k.shape[1] - q.shape[1]), float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), _for_each_head(v, q))


def torch_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Return torch's own result, by whichever of its kernels it prefers; like :func:`reference`.

    Raises:
        NotImplementedError: Its causal mask is aligned to the first key, which differs for other than as many keys.
    """
    if causal and q.shape[1] != k.shape[1]:
        raise NotImplementedError("torch's causal mask counts from the first key")
    heads_first = (value.transpose(1, 2) for value in (q, k, v))
    grouped = q.shape[2] != k.shape[2]
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(*heads_first, is_causal=causal, enable_gqa=grouped).transpose(1, 2)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random ``q``, ``k``, ``v`` and the flag ``causal``."""
    axes = workload.axes
    return _random(workload, int(axes["batch"]), int(axes["seq_len"]), int(axes["kv_len"]), device, seed)


def flops(inputs: Inputs) -> int:
    """Count two multiply-adds per pair of query and key that is allowed, and element of a head."""
    q, k, _, causal = inputs
    batch, queries, heads, head_dim = q.shape
    hidden = queries * (queries - 1) // 2 if causal else 0
    return int(4 * batch * heads * head_dim * (queries * k.shape[1] - hidden))


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return what rounding excuses: an eighth of the usual near 0, since outputs are averages of many values.

    Rounding the weights to the inputs' type costs about a quarter of its eps where a query sees few keys, and less
    the more it sees. Outputs of 16384 keys have a standard deviation of 0.013, six times that for bfloat16.
    """
    usual = dtype_tolerance(dtype)
    return Tolerance(rtol=usual.rtol, atol=usual.atol / 8)


def pieces(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield some heads, and some of their queries: all scores of a workload would fill 50 GB in float64.

    Causal queries are given the keys up to the one that the last of them sees, so the mask of a piece is aligned as
    that of the whole is.
    """
    q, k, v, causal = inputs
    queries, keys, kv_heads = q.shape[1], k.shape[1], k.shape[2]
    group = q.shape[2] // kv_heads
    heads_step = max(1, min(kv_heads, SCORES_AT_ONCE // (group * queries * keys)))
    step = max(1, min(queries, SCORES_AT_ONCE // (heads_step * group * keys)))
    for entry in range(q.shape[0]):
        batch = slice(entry, entry + 1)
        for head in range(0, kv_heads, heads_step):
            kv_part, part = slice(head, head + heads_step), slice(head * group, (head + heads_step) * group)
            for first in range(0, queries, step):
                rows = slice(first, min(first + step, queries))
                seen = slice(0, rows.stop + keys - queries if causal else keys)
                index = (batch, rows, part)
                yield index, (q[index], k[batch, seen, kv_part], v[batch, seen, kv_part], causal)


def gradient_pieces(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield one head at a time; all of them where query heads share key heads, for one index must name both."""
    q, k, v, causal, gradient = inputs
    step = 1 if q.shape[2] == k.shape[2] else q.shape[2]
    for head in range(0, q.shape[2], step):
        index = (slice(None), slice(None), slice(head, head + step))
        yield index, (q[index], k[index], v[index], causal, gradient[index])


def hard_cases(workload: Workload, inputs: Inputs) -> Iterator[Case]:
    """Yield inputs that a careless kernel gets wrong, though ordinary ones come out right."""
    q, k, v, causal = inputs
    yield "queries x30", (q * 30, k, v, causal)  # exp overflows unless the largest score is taken off first
    yield "dominating keys", (q, _with_dominating_keys(k), v, causal)  # the largest score comes late
    yield "equal keys", (q, k[:, :1].expand_as(k).contiguous(), v, causal)  # the plain mean of v
    yield "equal values", (q, k, constant_rows(v), causal)  # weights sum to 1
    yield "heads first in memory", (*(_heads_first(value) for value in (q, k, v)), causal)
    yield "padded heads", (*(padded_rows(value) for value in (q, k, v)), causal)
    for number, (batch, queries) in enumerate(((2, ODD_LENGTH), (1, FEW_QUERIES))):
        case = _random(workload, batch, queries, ODD_LENGTH, q.device, workload.seed + 1000 + number)
        yield f"batch {batch}, {queries} queries, {ODD_LENGTH} keys", case


def shorter(workload: Workload) -> Workload:
    """Return the workload with sequences below 512 that end within a block of keys as its own do.

    Where there are few queries the keys stay, since kernels treat that case apart.
    """
    axes = dict(workload.axes)
    if int(axes["seq_len"]) >= SHORT:
        axes |= {axis: SHORT + int(axes[axis]) % SHORT for axis in ("seq_len", "kv_len")}
    return replace(workload, axes={**axes, "batch": 1})


def _for_each_head(keys: Tensor, q: Tensor) -> Tensor:
    return keys.repeat_interleave(q.shape[2] // keys.shape[2], dim=2)


def _with_dominating_keys(k: Tensor) -> Tensor:
    changed = k.clone()
    changed[:, [k.shape[1] // 2, -1]] *= 30
    return changed


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _random(
    workload: Workload, batch: int, queries: int, keys: int, device: torch.device | str, seed: int
) -> Inputs:
    axes, dtype = workload.axes, workload.torch_dtype
    generator = torch.Generator(device=device).manual_seed(seed)
    shapes = [(queries, int(axes["heads"])), *[(keys, int(axes["kv_heads"]))] * 2]
    return *(
        torch.randn((batch, *shape, int(axes["head_dim"])), generator=generator, device=device, dtype=dtype)
        for shape in shapes
    ), bool(axes["causal"])


def _workload(
    name: str,
    length: int,
    *,
    keys: int = 0,
    batch: int = 1,
    heads: tuple[int, int] = (24, 24),
    head_dim: int = 128,
    causal: bool = False,
    dtype: str = "bfloat16",
) -> Workload:
    extents = (batch, length, keys or length, *heads, head_dim, causal)
    axes = dict(zip(AXES, extents, strict=True))
    return Workload(name=name, axes=axes, dtype=dtype)


_SMALL: dict[str, Any] = {"heads": (4, 4), "head_dim": 64, "dtype": "float32"}

OPERATOR = Operator(
    name="flash_attn",
    title="Attention",
    axes=AXES,
    workload_sets={
        # Those of huggingface/kernels-benchmarks: an image of 4096 patches and a text, as in Flux.
        "default": [_workload(f"flux_L{text}", 4096 + text) for text in (128, 256, 320, 384, 448, 512)],
        "large": [
            _workload("S8192", 8192),
            _workload("S16384", 16384),
            _workload("causal_S8192", 8192, causal=True),
            _workload("causal_S16384", 16384, causal=True),
            _workload("causal_S8192_H32_KV8", 8192, heads=(32, 8), causal=True),
        ],
        # One token, a few drafted ones, or a chunk of a prompt, against a cache whose keys all of them may see.
        "decode": [
            _workload(f"decode_Q{queries}_KV8192", queries, keys=8192, heads=(32, 8))
            for queries in (1, 8, 64)
        ],
        # TrainScale's, in its type.
        "trainscale": [
            _workload(
                f"trainscale_causal_S{length}", length, batch=2, heads=(32, 32), causal=True, dtype="float16"
            )
            for length in (2048, 8192)
        ],
        "cpu": [
            _workload("cpu_S128", 128, **_SMALL),
            _workload("cpu_S256", 256, **_SMALL),
            _workload("cpu_causal_S128", 128, causal=True, **_SMALL),
            _workload("cpu_causal_S256", 256, causal=True, **_SMALL),
        ],
        "smoke": [_workload("smoke_S64", 64, heads=(2, 2), head_dim=64)],
    },
    inputs=make_inputs,
    reference=reference,
    flops=flops,
    pieces=pieces,
    cases=hard_cases,
    tolerance=tolerance,
    baseline=torch_attention,
    smaller=shorter,
    gradients=(0, 1, 2),
    gradient_pieces=gradient_pieces,
    backward_flops=2.5,  # the scores once more, then three products for the gradients and one for the weights
)
