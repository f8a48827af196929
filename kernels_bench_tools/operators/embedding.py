"""Rows of an embedding matrix for token ids; backward, the sums of the gradients of each row's tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Output,
    Workload,
    copy_tolerance,
    model_sets,
)

AXES = ("tokens", "vocabulary", "hidden_dim")
ODD_SIZES = ((37, 7, 5000), (3, 33, 769), (1, 1, 1))


def reference(weight: Tensor, ids: Tensor) -> Tensor:
    """Return the row of ``weight`` (vocabulary, hidden_dim) for each of ``ids`` (tokens,): (tokens, hidden_dim)."""
    return functional.embedding(ids, weight)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``weight`` and int64 ``ids``; an id occurs about in proportion to 1 / (1 + id), as words do."""
    tokens, vocabulary, hidden_dim = (int(workload.axes[axis]) for axis in AXES)
    generator = torch.Generator(device=device).manual_seed(seed)
    shape = (vocabulary, hidden_dim)
    weight = torch.randn(shape, generator=generator, device=device, dtype=workload.torch_dtype)
    uniform = torch.rand((tokens,), generator=generator, device=device, dtype=torch.float64)
    ids = (uniform * math.log(vocabulary + 1)).exp().long() - 1
    return weight, ids.clamp(0, vocabulary - 1)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    weight, ids = inputs
    last = len(weight) - 1
    yield "one id", (weight, torch.full_like(ids, last))
    yield "first and last row", (weight, torch.arange(len(ids), device=ids.device) % 2 * last)
    yield "large values", (weight.sign() * torch.finfo(weight.dtype).max, ids)
    yield "every other id", (weight, torch.stack((ids, torch.full_like(ids, -1)), 1)[:, 0])
    yield "int32 ids", (weight, ids.int())
    yield "column-major weight", (helpers.transposed(weight), ids)
    yield "padded rows", (helpers.padded_rows(weight), ids)
    yield from helpers.odd_shapes(workload, AXES, ODD_SIZES, make_inputs, weight.device)


def token_slices(inputs: Inputs) -> Iterator[tuple[slice, Inputs]]:
    """Yield slices of tokens, with the rows that they name: all of a large weight would not fit in float64."""
    weight, ids = inputs
    for part in helpers.parts(len(ids), weight.shape[1]):
        rows, own = ids[part].unique(return_inverse=True)
        yield part, (weight[rows], own)


def bytes_of_rows(inputs: Inputs) -> dict[int, int]:
    """Return the bytes of the weight's rows that are looked up, each counted once."""
    weight, ids = inputs[:2]
    return {0: ids.unique().numel() * weight.shape[1] * weight.element_size()}


_name = "T{tokens}_V{vocabulary}_D{hidden_dim}".format
_workloads = partial(helpers.make_workloads, AXES, _name)

OPERATOR = Operator(
    name="embedding",
    title="Embedding",
    axes=AXES,
    workload_sets={
        # The vocabularies of Llama 2 and 3.
        "default": _workloads("bfloat16", "", ((8192, 32000, 4096), (8192, 128256, 4096))),
        "large": _workloads("bfloat16", "", ((65536, 128256, 4096), (32768, 128256, 8192))),
        "decode": _workloads("bfloat16", "", tuple((tokens, 128256, 4096) for tokens in (1, 8, 64))),
        "cpu": _workloads("float32", "cpu_", ((2048, 8192, 512),)),
        "smoke": _workloads("float32", "smoke_", ((16, 100, 64),)),
        **model_sets("embedding", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda _: 0,
    outputs=(Output(tolerance=copy_tolerance, shape=lambda inputs: (len(inputs[1]), inputs[0].shape[1])),),
    slices=token_slices,
    edge_cases=edge_cases,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, tokens=64, vocabulary=1000),
    nonfinite=helpers.any_number(0),
    parameters=(0,),
    partly_read=bytes_of_rows,
    gradients=(0,),
    gradient_slices=helpers.sliced(1, None, 1, into=1),
    backward_unread=(0,),
)
