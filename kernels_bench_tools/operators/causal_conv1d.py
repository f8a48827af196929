"""Depthwise causal convolution along a sequence, with bias and optional SiLU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, model_sets

AXES = ("batch", "dim", "seq_len", "width", "activation")
FLOPS_OF_SILU = 4
"""Negate, exponential, add, divide."""
ODD_SHAPES = ((1, 3, 1025, 4), (2, 5, 1, 4), (3, 70, 2, 3), (2, 7, 131, 2))


def reference(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None = None) -> Tensor:
    """Return ``bias + sum(weight[:, j] * x[..., t - (width - 1) + j])`` for every time ``t``, activated.

    ``x`` is (..., dim, seq_len), and zero before its first element; ``weight`` (dim, width); ``bias`` (dim,).
    """
    width, seq_len = weight.shape[1], x.shape[-1]
    padded = F.pad(x, (width - 1, 0))
    out = bias[:, None] + sum(weight[:, tap, None] * padded[..., tap : tap + seq_len] for tap in range(width))
    return F.silu(out) if activation == "silu" else out


def torch_causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None = None) -> Tensor:
    """Compute :func:`reference` with ``torch.nn.functional.conv1d``."""
    dim, width = weight.shape
    out = F.conv1d(x, weight[:, None], bias, padding=width - 1, groups=dim)[..., : x.shape[-1]]
    return F.silu(out) if activation == "silu" else out


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random ``x``, ``weight`` and ``bias`` as in :func:`reference`, and the activation."""
    batch, dim, seq_len, width = (int(workload.axes[axis]) for axis in AXES[:4])
    activation = None if workload.axes["activation"] == "none" else str(workload.axes["activation"])
    shapes = ((batch, dim, seq_len), (dim, width), (dim,))
    return (*helpers.random_tensors(shapes, workload.torch_dtype, device, seed), activation)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, *others = inputs
    impulse = torch.zeros_like(x)
    impulse[..., 0] = 1
    yield "impulse at the start", (impulse, *others)  # returns the taps in order
    yield "impulse at the end", (impulse.flip(-1), *others)  # returns the last tap only
    yield "constant rows", (helpers.constant_rows(x), *others)  # fewer taps at the start
    yield "spikes", (helpers.spikes(x), *others)  # in a row's last columns: must not reach the next row
    yield "values x100", (x * 100, *others)  # SiLU's exponential overflows
    yield "channels last", (helpers.transposed(x, 1), *others)
    yield "padded rows", (helpers.padded_rows(x), *others)
    yield from helpers.odd_shapes(workload, AXES[:4], ODD_SHAPES, make_inputs, x.device)


def count_flops(inputs: Inputs) -> int:
    """Count a product and a sum for each tap, and the activation."""
    x, weight, _, activation = inputs
    return x.numel() * (2 * weight.shape[1] + (FLOPS_OF_SILU if activation else 0))


_name = "B{batch}_D{dim}_S{seq_len}_W{width}".format
_workloads = partial(helpers.make_workloads, AXES, _name)
_DEFAULT = [(*sizes, "none") for sizes in product((2, 4), (64, 2048), (128, 512, 2048), (2, 4))]
_LARGE = ((4, 4096, 4096), (1, 8192, 8192), (8, 8192, 2048), (4, 8192, 8192))


OPERATOR = Operator(
    name="causal_conv1d",
    title="Causal Conv1D",
    axes=AXES,
    workload_sets={
        # Sizes and dtype of huggingface/kernels-benchmarks.
        "default": _workloads("float32", "", _DEFAULT),
        "large": _workloads("bfloat16", "", [(*extents, 4, "silu") for extents in _LARGE]),
        "decode": _workloads("bfloat16", "decode_", [(1, 8192, tokens, 4, "silu") for tokens in (1, 8, 64)]),
        "cpu": _workloads("float32", "cpu_", [(1, 64, seq_len, 4, "none") for seq_len in (128, 512, 2048)]),
        "smoke": _workloads("float32", "smoke_", ((2, 8, 32, 4, "silu"),)),
        **model_sets("causal_conv1d", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=count_flops,
    slices=helpers.sliced(1, 0, 0, None, into=1),
    edge_cases=edge_cases,
    baseline=torch_causal_conv1d,
    smaller=partial(helpers.limit_axes, batch=2, dim=32, seq_len=2100),  # rows of more than one block
    multiples={"width": 0},  # a property of the model
    nonfinite={"nan": (0,)},
    gradients=(0, 1, 2),
    parameters=(1, 2),
)
