"""Multi-scale deformable attention: each query takes a few points of several feature maps, between their pixels."""

# ruff: noqa: ARG001 - an implementation gets what describes the maps in two forms
from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Workload

AXES = ("batch", "queries", "heads", "head_dim", "points", "maps")
FLOPS_PER_CORNER = 2
"""A product and a sum; the four shares of a point and its weight are not counted for each of its values."""
ODD_SHAPES = ((1, 1, 1, 8, 1, "5x3"), (2, 7, 3, 24, 3, "1x1 9x4 2x7"), (1, 33, 2, 48, 4, "3x4 6x8"))


def sizes_of(maps: str) -> tuple[tuple[int, int], ...]:
    """Return height and width of each map of ``"100x134 50x67"``."""
    return tuple((int(height), int(width)) for height, width in (one.split("x") for one in maps.split()))


def reference(
    value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor, maps: str
) -> Tensor:
    """Return (batch, queries, heads * head_dim): the weighted sum of the values at the points of each query and head.

    ``value`` is (batch, pixels of all maps, heads, head_dim), ``locations`` (batch, queries, heads, maps, points, 2), x before y,
    from 0 to 1 inside of a map, ``weights`` (batch, queries, heads, maps, points). Values are interpolated between
    the centres of pixels, and zero outside of the map. ``shapes``, ``starts`` and ``maps`` describe the maps:
    (maps, 2) heights and widths, the first pixel of each, and the sizes as :func:`sizes_of` reads them.
    """
    batch, queries, heads = locations.shape[:3]
    total = value.new_zeros(batch, heads, value.shape[-1], queries)
    pixels = value.split([height * width for height, width in sizes_of(maps)], dim=1)
    for level, ((height, width), one) in enumerate(zip(sizes_of(maps), pixels, strict=True)):
        plane = one.permute(0, 2, 3, 1).reshape(batch * heads, -1, height, width)
        grid = 2 * locations[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1
        sampled = functional.grid_sample(plane, grid, padding_mode="zeros", align_corners=False)
        share = weights[:, :, :, level].transpose(1, 2)[:, :, None]
        total = total + (sampled.unflatten(0, (batch, heads)) * share).sum(-1)
    return total.permute(0, 3, 1, 2).flatten(2)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random inputs as in :func:`reference`. Points are around that of their query, some outside of the maps.

    The weights of a query and head have a sum of 1.
    """
    batch, queries, heads, head_dim, points = (int(workload.axes[axis]) for axis in AXES[:5])
    maps = str(workload.axes["maps"])
    sizes = sizes_of(maps)
    shape = (batch, queries, heads, len(sizes), points)
    pixels = sum(height * width for height, width in sizes)
    shapes: Sequence[Sequence[int]] = ((batch, pixels, heads, head_dim), (*shape, 2), shape)
    value, offsets, logits = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    of_query = torch.rand((batch, queries, 1, 1, 1, 2), generator=generator, device=device)
    extents = torch.tensor(sizes, device=device)
    # Offsets of models are in pixels.
    locations = of_query + 2 * offsets / extents.flip(1)[:, None]
    counts = extents.prod(1)
    weights = logits.flatten(3).softmax(-1).view(shape)
    return value, extents, counts.cumsum(0) - counts, locations.to(value.dtype), weights, maps


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    value, shapes, starts, locations, weights, maps = inputs
    yield "outside of the maps", (value, shapes, starts, locations + 10, weights, maps)
    # No integer of 32 bits holds the pixel.
    yield "far outside", (value, shapes, starts, locations * 1e9, weights, maps)
    pixels = shapes.flip(1)[:, None]
    yield "at the borders", (value, shapes, starts, (locations > 0.5).to(value.dtype), weights, maps)
    centres = ((locations * pixels).floor() + 0.5) / pixels
    yield "at the centres of pixels", (value, shapes, starts, centres.to(value.dtype), weights, maps)
    yield "negative weights", (value, shapes, starts, locations, -2 * weights, maps)
    yield "padded rows", (helpers.padded_rows(value), shapes, starts, locations, weights, maps)
    yield "heads first in memory", (helpers.transposed(value, 1), shapes, starts, locations, weights, maps)
    yield from helpers.odd_shapes(workload, AXES, ODD_SHAPES, make_inputs, value.device)


tolerance = helpers.or_in_single(3e-5)
"""A rounding of a location is 1e-5 pixels on a map of 100."""


def count_flops(inputs: Inputs) -> int:
    value, weights = inputs[0], inputs[4]
    return int(4 * FLOPS_PER_CORNER * weights.numel() * value.shape[-1])


def _name(batch: int, queries: int, heads: int, head_dim: int, points: int, maps: str) -> str:
    return f"B{batch}_Q{queries}_H{heads}_D{head_dim}_L{len(sizes_of(maps))}_P{points}_{maps.split()[0]}"


_workloads = partial(helpers.make_workloads, AXES, _name)

_DETR, _MASK2FORMER = "100x134 50x67 25x34 13x17", "32x32 64x64 128x128"
"""Of an image of 800 x 1066 in Deformable DETR, and of 1024 x 1024 in Mask2Former's pixel decoder, which begins with the coarsest."""
_PIXELS, _FINE_PIXELS = (
    sum(height * width for height, width in sizes_of(maps)) for maps in (_DETR, _MASK2FORMER)
)

OPERATOR = Operator(
    name="deformable_attention",
    title="Deformable Attention",
    axes=AXES,
    workload_sets={
        # The layers of the encoder, of one and two images, and of the decoder; then those of the pixel decoder.
        "default": _workloads(
            "float32",
            "",
            (
                (1, _PIXELS, 8, 32, 4, _DETR),
                (2, _PIXELS, 8, 32, 4, _DETR),
                (1, 300, 8, 32, 4, _DETR),
                (1, _FINE_PIXELS, 8, 32, 4, _MASK2FORMER),
                (4, _FINE_PIXELS, 8, 32, 4, _MASK2FORMER),
            ),
        ),
        "cpu": _workloads("float32", "cpu_", ((1, 300, 8, 32, 4, "25x34 13x17"),)),
        "smoke": _workloads("float32", "smoke_", ((2, 20, 2, 16, 4, "8x10 4x5"),)),
    },
    inputs=make_inputs,
    reference=reference,
    flops=count_flops,
    outputs=(Output(shape=lambda inputs: (*inputs[3].shape[:2], inputs[0].shape[2] * inputs[0].shape[3])),),
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=reference,  # called with the workload's dtype
    smaller=lambda workload: helpers.with_axes(
        helpers.limit_axes(workload, batch=2, queries=200),
        maps=" ".join(str(workload.axes["maps"]).split()[-2:]),
    ),
    fixed=(1, 2),
)
