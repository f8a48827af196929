"""Root mean square normalization over the last axis, optionally of a sum with a residual, or with a gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Outputs, Workload, model_sets

AXES = ("function", "batch", "seq_len", "hidden_dim")
GROUPS = {"rms_norm": "RMSNorm", "add_rms_norm": "RMSNorm with residual"}
PREFIXES = {"rms_norm": "RMS", "add_rms_norm": "AddRMS"}
EPSILON = 1e-6
OTHER_EPSILON = 1e-5
"""Qwen's and Llama's: both are usual, so that a kernel has to take it as an argument."""
FLOPS_PER_ELEMENT = 4
"""Square, sum, scale and weight; a residual adds one."""
ODD_SHAPES = ((3, 5, 1000), (2, 3, 769), (2, 3, 8), (1, 2, 5000))
"""In rows of 8 columns a mean over 7 of them is wrong in every type; those of 5000 are whole tiles and a rest, also for tiles of 4096."""


def reference(x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = EPSILON) -> Outputs:
    """Return ``h / sqrt(mean(h²) + eps) * weight`` of ``h = x``; with a residual, of ``h = x + residual``, and ``h``."""
    if residual is None:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    hidden = x + residual
    return torch.nn.functional.rms_norm(hidden, x.shape[-1:], weight, eps), hidden


def gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float = EPSILON) -> Tensor:
    """Return the norm of ``x``, times ``silu(gate)``, as in Qwen3-Next."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps) * torch.nn.functional.silu(gate)


def gate_first(x: Tensor, gate: Tensor, weight: Tensor, eps: float = EPSILON) -> Tensor:
    """Return the norm of ``x * silu(gate)``, as in Mamba-2."""
    return torch.nn.functional.rms_norm(x * torch.nn.functional.silu(gate), x.shape[-1:], weight, eps)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random ``x`` (batch, seq_len, hidden_dim), ``weight`` (hidden_dim), ``residual`` like ``x`` or None, eps.

    Rows of ``x`` have standard deviations of 0.5 to 1.5: the mean squares of 8192 normal values are 1 within the tolerance
    of half precision.
    """
    shape = tuple(int(workload.axes[axis]) for axis in AXES[1:])
    # The weight is not all ones, so that a kernel that ignores it fails.
    count = 2 if workload.axes["function"] == "add_rms_norm" else 1
    shapes = [*[shape] * count, shape[-1:]]
    x, *rest, weight = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    x.mul_(0.5 + torch.rand((*shape[:-1], 1), generator=generator, device=device))
    return x, weight, rest[0] if rest else None, EPSILON


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, weight, residual, eps = inputs
    tiny = helpers.changed(inputs, lambda value: value * 1e-3, 0, 2)  # eps is as large as the mean square
    yield "tiny values", tiny
    yield f"eps {OTHER_EPSILON:g}", (*tiny[:3], OTHER_EPSILON)
    yield "zero rows", helpers.changed(inputs, torch.zeros_like, 0, 2)  # the mean square is eps
    yield "constant rows", (helpers.constant_rows(x), weight, residual, eps)
    yield "large values", (x * 5e3, weight, residual, eps)  # their squares overflow float16
    yield "spikes", (helpers.spikes(x), weight, residual, eps)
    yield "transposed", helpers.changed(inputs, helpers.transposed, 0, 2)
    # With other strides than those of x.
    padded = None if residual is None else helpers.padded_rows(residual, 16)
    yield "padded rows", (helpers.padded_rows(x), weight, padded, eps)
    shapes = (*ODD_SHAPES, (1, 1, x.shape[-1]))
    yield from helpers.odd_shapes(workload, AXES[1:], shapes, make_inputs, x.device)


def gated_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random ``x``, ``gate`` like ``x``, ``weight`` and eps."""
    x, weight, _, eps = make_inputs(workload, device, seed)
    (gate,) = helpers.random_tensors([x.shape], x.dtype, device, seed + 1)
    return x, gate, weight, eps


def gated_edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, gate, weight, eps = inputs
    yield "tiny values", (x * 1e-3, gate, weight, eps)
    yield f"eps {OTHER_EPSILON:g}", (x * 1e-3, gate, weight, OTHER_EPSILON)
    yield "zero rows", (torch.zeros_like(x), gate, weight, eps)
    yield "large gates", (x, gate * 50, weight, eps)  # their exponential overflows
    yield "spikes", (helpers.spikes(x), gate, weight, eps)
    yield "padded rows", (*helpers.padded_differently(x, gate), weight, eps)
    yield from helpers.odd_shapes(workload, AXES[1:], ODD_SHAPES, gated_inputs, x.device)


def _gated_layout(formula: Callable[..., Tensor]) -> dict[str, Any]:
    """Return what differs where implementations are called with a gate."""
    return {
        "inputs": gated_inputs,
        "reference": formula,
        "baseline": helpers.in_single(formula),
        "flops": lambda inputs: (FLOPS_PER_ELEMENT + 5) * inputs[0].numel(),
        "edge_cases": gated_edge_cases,
        "gradients": (),
        "parameters": (2,),
    }


def count_flops(inputs: Inputs) -> int:
    x, _, residual, _ = inputs
    return int(x.numel() * (FLOPS_PER_ELEMENT + (residual is not None)))


_name = helpers.named(PREFIXES, "B{batch}_S{seq_len}_D{hidden_dim}")
_workloads = partial(helpers.make_workloads, AXES, _name, groups=GROUPS)

# The sizes of layer_norm's default set, for comparison.
_DEFAULT = tuple((16, seq_len, hidden_dim) for seq_len in (2048, 4096) for hidden_dim in (4096, 8192))
_LARGE = ((1, 65536, 4096), (1, 16384, 16384))
_DECODE = tuple((tokens, 1, 4096) for tokens in (1, 8, 64))
_TRAINSCALE = tuple((b, s, d) for b in (4, 32) for s in (2048, 4096) for d in (4096, 8192))
_CPU = tuple((1, seq_len, 1024) for seq_len in (128, 256))

OPERATOR = Operator(
    name="rms_norm",
    title="RMS Normalization",
    axes=AXES,
    workload_sets={
        "default": _workloads("bfloat16", "", _DEFAULT, _DEFAULT),
        "large": _workloads("bfloat16", "", _LARGE, _LARGE[:1]),
        "decode": _workloads("bfloat16", "", _DECODE, _DECODE),
        # Sizes and dtype of TrainScale.
        "trainscale": _workloads("float16", "trainscale_", _TRAINSCALE, ()),
        "cpu": _workloads("float32", "cpu_", _CPU, _CPU),
        "cpu_bfloat16": _workloads("bfloat16", "cpu_bf16_", _CPU, _CPU),
        "smoke": _workloads("float32", "smoke_", ((2, 32, 256),), ((2, 32, 256),)),
        **model_sets("rms_norm", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=count_flops,
    slices=helpers.batch_slices,
    edge_cases=edge_cases,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, batch=4, seq_len=64),
    nonfinite=helpers.any_number(0),
    gradients=(0, 1),
    parameters=(1,),
    layouts={
        name: {GROUPS["rms_norm"]: _gated_layout(formula)}
        for name, formula in (("gated", gated), ("gate_first", gate_first))
    },
    # With a residual, the bytes of a backward pass depend on what the forward pass saved: no backward mode.
    variants={GROUPS["add_rms_norm"]: {"outputs": (Output("out"), Output("residual")), "gradients": ()}},
)
