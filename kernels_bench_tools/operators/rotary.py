"""Rotary position embeddings of queries and keys, on the two halves of each head ("NeoX" style)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Workload, model_sets

AXES = ("batch", "seq_len", "heads", "kv_heads", "head_dim")
FLOPS_PER_ELEMENT = 3
"""Per pair: four products, a difference and a sum."""
ODD_SHAPES = ((1, 3, 5, 5, 80), (3, 1, 6, 2, 34), (2, 7, 3, 1, 96))


def reference(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate each pair (left half, right half) of every head by the angle of its token and column.

    ``q`` and ``k`` are (batch, seq_len, heads or kv_heads, head_dim); ``cos`` and ``sin`` (seq_len, head_dim / 2).
    """
    cos, sin = cos[:, None], sin[:, None]

    def rotate(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)

    return rotate(q), rotate(k)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random ``q`` and ``k``, and ``cos`` and ``sin`` of random angles, all of one dtype."""
    batch, seq_len, heads, kv_heads, head_dim = (int(workload.axes[axis]) for axis in AXES)
    dtype, generator = workload.torch_dtype, torch.Generator(device=device).manual_seed(seed)
    q, k = (
        torch.randn((batch, seq_len, count, head_dim), generator=generator, device=device, dtype=dtype)
        for count in (heads, kv_heads)
    )
    # Random angles: with the usual frequencies the first tokens and the last columns hardly turn.
    angle = torch.rand((seq_len, head_dim // 2), generator=generator, device=device) * (2 * math.pi)
    return q, k, angle.cos().to(dtype), angle.sin().to(dtype)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    q, k, cos, _ = inputs
    zero, one = torch.zeros_like(cos), torch.ones_like(cos)
    yield "angle 0", (q, k, one, zero)  # nothing changes
    yield "angle 90", (q, k, zero, one)  # swaps the halves, with one sign
    # Also in the last columns of the last heads.
    yield "spikes", helpers.changed(inputs, helpers.spikes, 0, 1)
    # In memory, as in Megatron, and as attention has them.
    yield "sequence first", helpers.changed(inputs, helpers.transposed, 0, 1)
    yield "heads first", helpers.changed(inputs, partial(helpers.transposed, axis=1), 0, 1)
    yield "padded rows", helpers.changed(inputs, helpers.padded_rows, 0, 1)
    yield from helpers.odd_shapes(workload, AXES, ODD_SHAPES, make_inputs, q.device)


def _name(batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int) -> str:
    grouped = f"_KV{kv_heads}" if kv_heads != heads else ""
    return f"B{batch}_S{seq_len}_H{heads}{grouped}_D{head_dim}"


_workloads = partial(helpers.make_workloads, AXES, _name)
_token_slices = helpers.sliced(1, 1, 0, 0, 1, 1, into=1)
_DEFAULT = product((1, 2), (128, 512, 2048), (8, 32), (64, 128))
_LONG = [(1, seq_len, 32, 32, 128) for seq_len in (4096, 8192, 16384)]

OPERATOR = Operator(
    name="rotary",
    title="Rotary Position Embeddings",
    axes=AXES,
    workload_sets={
        # Sizes and dtype of huggingface/kernels-benchmarks.
        "default": _workloads("float32", "", [(b, s, h, h, d) for b, s, h, d in _DEFAULT]),
        "large": _workloads("bfloat16", "", (*_LONG, (4, 8192, 32, 32, 128), (4, 8192, 32, 8, 128))),
        "decode": _workloads("bfloat16", "decode_", [(tokens, 1, 32, 8, 128) for tokens in (1, 8, 64)]),
        # Sizes and dtype of TrainScale.
        "trainscale": _workloads("float16", "trainscale_", _LONG),
        "cpu": _workloads("float32", "cpu_", [(1, seq_len, 8, 8, 64) for seq_len in (128, 512, 1024)]),
        "cpu_bfloat16": _workloads(
            "bfloat16", "cpu_bf16_", [(1, tokens, 8, 8, 64) for tokens in (128, 1024)]
        ),
        "smoke": _workloads("float32", "smoke_", ((2, 16, 4, 2, 32),)),
        **model_sets("rotary", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: FLOPS_PER_ELEMENT * (inputs[0].numel() + inputs[1].numel()),
    outputs=(Output("q"), Output("k", shape=lambda inputs: inputs[1].shape)),
    slices=_token_slices,
    edge_cases=edge_cases,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, batch=4, seq_len=33),
    multiples={"head_dim": 2},
    nonfinite=helpers.any_number(0, 1),
    gradients=(0, 1),
    parameters=(2, 3),
    gradient_slices=_token_slices,
    backward_flops=1.0,  # a rotation by the opposite angle
    backward_unread=(0, 1),  # the gradients suffice
)
