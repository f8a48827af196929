"""Scaled dot-product attention: full or causal, optionally with grouped key heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Tolerance,
    Workload,
    dtype_tolerance,
    model_sets,
)

AXES = ("batch", "seq_len", "kv_len", "heads", "kv_heads", "head_dim", "causal")
SCORES_AT_ONCE = 2**25
"""Scores that the reference computes at a time: 268 MB in float64."""
SHORT = 256
ODD_LENGTH = 113
FEW_QUERIES = 7
MOST_MEAN = 3.0
"""Allowed mean error, as a multiple of that of torch's operator."""


def reference(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Return ``softmax(q k^T / sqrt(D)) v`` for each head.

    ``q`` is (batch, seq_len, heads, head_dim), ``k`` and ``v`` (batch, kv_len, kv_heads, head_dim); query head h uses
    key head ``h // (heads // kv_heads)``. Causal: query i attends to keys up to ``i + kv_len - seq_len`` only.
    """
    return torch.einsum("bhij,bjhd->bihd", _scores(q, k, causal).softmax(-1), _for_each_head(v, q))


def _scores(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q, _for_each_head(k, q)) * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~seen.tril(k.shape[1] - q.shape[1]), float("-inf"))
    return scores


def torch_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Compute :func:`reference` with torch, which aligns a causal mask to the first key, so not if lengths differ."""
    if causal and q.shape[1] != k.shape[1]:
        raise NotImplementedError("torch aligns the causal mask to the first key")
    heads_first = (value.transpose(1, 2) for value in (q, k, v))
    grouped = q.shape[2] != k.shape[2]
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(*heads_first, is_causal=causal, enable_gqa=grouped).transpose(1, 2)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    batch, queries, keys, heads, kv_heads, head_dim = (int(workload.axes[axis]) for axis in AXES[:-1])
    shapes = ((batch, queries, heads, head_dim), *[(batch, keys, kv_heads, head_dim)] * 2)
    tensors = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    return *tensors, bool(workload.axes["causal"])


def flops(inputs: Inputs) -> int:
    """Count two multiply-adds per unmasked pair of query and key, and element of a head."""
    q, k, _, causal = inputs
    batch, queries, heads, head_dim = q.shape
    hidden = queries * (queries - 1) // 2 if causal else 0
    return int(4 * batch * heads * head_dim * (queries * k.shape[1] - hidden))


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return an eighth of the absolute tolerance: averages of 16384 values have a standard deviation of 0.013.

    Scores of queries and keys that were rounded to 8-bit integers are within it, too, but their mean error is 4.2 times
    torch's. That of the exact kernels is at most 1.9 times.
    """
    default = dtype_tolerance(dtype)
    return Tolerance(rtol=default.rtol, atol=default.atol / 8, mean=MOST_MEAN)


def slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield slices of heads and queries, with the keys up to a causal slice's last query's: scores can take 50 GB."""
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


def gradient_slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield one head at a time, or all where query heads share key heads: the index selects both."""
    q, k, v, causal, gradient = inputs
    step = 1 if q.shape[2] == k.shape[2] else q.shape[2]
    for head in range(0, q.shape[2], step):
        index = (slice(None), slice(None), slice(head, head + step))
        yield index, (q[index], k[index], v[index], causal, gradient[index])


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    q, k, v, causal = inputs
    yield "queries x30", (q * 30, k, v, causal)  # exp overflows unless the maximum is subtracted
    dominating = k.clone()
    dominating[:, [k.shape[1] // 2, -1]] *= 30
    yield "dominating keys", (q, dominating, v, causal)  # the maximum comes late
    yield "equal keys", (q, k[:, :1].expand_as(k).contiguous(), v, causal)  # the plain mean of v
    yield "equal values", (q, k, helpers.constant_rows(v), causal)  # weights sum to 1
    yield "heads first in memory", helpers.changed(inputs, partial(helpers.transposed, axis=1), 0, 1, 2)
    yield "padded heads", (*helpers.padded_differently(q, k, v), causal)
    shapes = ((2, ODD_LENGTH, ODD_LENGTH), (1, FEW_QUERIES, ODD_LENGTH))
    yield from helpers.odd_shapes(workload, AXES[:3], shapes, make_inputs, q.device)


def shorter(workload: Workload) -> Workload:
    """Return the workload with one batch entry and short sequences, the same modulo 256; few queries keep their keys."""
    lengths = {axis: int(workload.axes[axis]) for axis in ("seq_len", "kv_len")}
    if lengths["seq_len"] >= SHORT:
        lengths = {axis: SHORT + length % SHORT for axis, length in lengths.items()}
    return helpers.with_axes(workload, **lengths, batch=1)


def with_int8_scores(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Compute :func:`reference` from queries and keys rounded to 8-bit integers with a scale for each head."""
    q, k = (_rounded(value, 127, torch.round) for value in (q, k))
    return reference(q, k, v, causal)


def with_fp8_products(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Compute :func:`reference` with all factors rounded to FP8 (e4m3): inputs with a scale for each head, and weights."""
    q, k, v = (_rounded(value, 448, _to_fp8) for value in (q, k, v))
    scores = _scores(q, k, causal)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    products = torch.einsum("bhij,bjhd->bihd", _to_fp8(448 * weights) / 448, _for_each_head(v, q))
    return products / weights.sum(-1).transpose(1, 2)[..., None]


def _rounded(x: Tensor, largest: int, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    step = x.abs().amax((1, 3), keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / largest
    return rounding(x / step) * step


def _to_fp8(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def _for_each_head(keys: Tensor, q: Tensor) -> Tensor:
    return keys.repeat_interleave(q.shape[2] // keys.shape[2], dim=2)


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


_name = "Q{seq_len}_KV{kv_len}_H{heads}_D{head_dim}".format
_SMALL: dict[str, Any] = {"heads": (4, 4), "head_dim": 64, "dtype": "float32"}

OPERATOR = Operator(
    name="flash_attn",
    title="Attention",
    axes=AXES,
    workload_sets={
        # Sizes of huggingface/kernels-benchmarks: an image of 4096 patches and a text, as in Flux.
        "default": [_workload(f"flux_L{text}", 4096 + text) for text in (128, 256, 320, 384, 448, 512)],
        "large": [
            _workload("S8192", 8192),
            _workload("S16384", 16384),
            _workload("causal_S8192", 8192, causal=True),
            _workload("causal_S16384", 16384, causal=True),
            _workload("causal_S8192_H32_KV8", 8192, heads=(32, 8), causal=True),
        ],
        # One token, a few drafted ones, or a chunk of a prompt; all attend to the whole cache.
        "decode": [_workload(f"decode_Q{n}_KV8192", n, keys=8192, heads=(32, 8)) for n in (1, 8, 64)],
        # Sizes and dtype of TrainScale.
        "trainscale": [
            _workload(f"trainscale_causal_S{n}", n, batch=2, heads=(32, 32), causal=True, dtype="float16")
            for n in (2048, 8192)
        ],
        "cpu": [
            _workload(f"cpu_{name}S{length}", length, causal=bool(name), **_SMALL)
            for name in ("", "causal_")
            for length in (128, 256)
        ],
        "cpu_bfloat16": [
            _workload(f"cpu_bf16_{name}S{length}", length, causal=bool(name), heads=(4, 4), head_dim=64)
            for name in ("", "causal_")
            for length in (256, 1024)
        ],
        "smoke": [_workload("smoke_S64", 64, heads=(2, 2), head_dim=64)],
        **model_sets("flash_attn", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=flops,
    slices=slices,
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=torch_attention,
    smaller=shorter,
    multiples={"heads": 0, "kv_heads": 0, "head_dim": 0},  # properties of the model
    nonfinite={"nan": (0,)},
    precisions={"int8": with_int8_scores, "fp8": with_fp8_products},
    gradients=(0, 1, 2),
    gradient_slices=gradient_slices,
    backward_flops=2.5,  # recomputed scores, three products for the gradients, one for the weights
)
