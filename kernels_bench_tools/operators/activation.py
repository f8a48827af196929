"""Activation functions of feed-forward layers: SwiGLU, GELU (tanh) and GELU (erf), SiLU, QuickGELU and GeGLU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Output,
    Tolerance,
    Workload,
    dtype_tolerance,
    eps_of,
    model_sets,
)

AXES = ("function", "tokens", "hidden_dim")
GROUPS = {
    "swiglu": "SwiGLU",
    "gelu_tanh": "GELU (tanh)",
    "gelu": "GELU (erf)",
    "silu": "SiLU",
    "quick_gelu": "QuickGELU",
    "geglu": "GeGLU",
}
KINDS = {**{function: function for function in GROUPS}, "swiglu": "", "gelu_tanh": "tanh", "gelu": "none"}
"""The second argument: that of ``torch.nn.functional.gelu`` for its two forms, none for SwiGLU."""
GATED = ("", "geglu")
FLOPS_PER_OUTPUT = {"": 5, "tanh": 9, "none": 5, "silu": 4, "quick_gelu": 5, "geglu": 10}
"""By kind; exponential, division, tanh and erf count as one operation each."""
ODD_SIZES = ((5, 1000), (3, 769), (2, 5000))
"""Rows of 5000 columns are whole tiles and a rest, also for tiles of 2048 and 4096."""

Sizes = Sequence[tuple[int, int]]
PEER: Sizes = tuple((tokens, hidden_dim) for tokens in (128, 256, 512) for hidden_dim in (768, 1024, 2048))
LARGE: Sizes = ((2048, 11008), (16384, 14336))
CPU: Sizes = ((64, 1024), (256, 1024))
SMOKE: Sizes = ((16, 256),)


def reference(x: Tensor, kind: str = "") -> Tensor:
    """Return the activation of ``x`` (tokens, hidden_dim); SwiGLU and GeGLU are of (tokens, 2 * hidden_dim), gate first."""
    if kind == "geglu":
        gate, up = x.chunk(2, dim=-1)
        return functional.gelu(gate, approximate="tanh") * up
    if kind == "silu":
        return functional.silu(x)
    if kind == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    if kind:
        return functional.gelu(x, approximate=kind)
    return gated(*x.chunk(2, dim=-1))


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return ``(x,)`` for SwiGLU, ``(x, kind)`` for others; ``x`` is normally distributed."""
    kind = KINDS[str(workload.axes["function"])]
    shape = (int(workload.axes["tokens"]), int(workload.axes["hidden_dim"]) * (2 if kind in GATED else 1))
    x = helpers.random_tensors([shape], workload.torch_dtype, device, seed)
    return (*x, kind) if kind else x


def kind_of(inputs: Inputs) -> str:
    return str(inputs[1]) if len(inputs) > 1 else ""


def output_shape(inputs: Inputs) -> tuple[int, int]:
    """Return the result's shape: half of the columns of what is gated."""
    x = inputs[0]
    return x.shape[0], x.shape[1] // (2 if kind_of(inputs) in GATED else 1)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, *rest = inputs
    stretch = torch.full_like(x[:1], 50.0)
    if kind_of(inputs) in GATED:
        stretch[:, x.shape[-1] // 2 :] = 1.0  # the gate only, so that the result fits into float16
    yield "large values", (x * stretch, *rest)  # exp and x³ overflow, the result does not
    yield "spikes", (helpers.spikes(x), *rest)
    yield "column-major", (helpers.transposed(x), *rest)
    yield "padded rows", (helpers.padded_rows(x), *rest)
    shapes = (*ODD_SIZES, (1, workload.axes["hidden_dim"]))
    yield from helpers.odd_shapes(workload, ("tokens", "hidden_dim"), shapes, make_inputs, x.device)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def two_tensors(inputs: Inputs) -> Inputs:
    (x,) = inputs
    halves = x.chunk(2, dim=-1)
    return tuple(half.contiguous() for half in halves) if x.is_contiguous() else tuple(halves)


def edge_cases_of_two_tensors(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    for name, joined in edge_cases(workload, (torch.cat(inputs, dim=-1),)):
        yield name, two_tensors(joined)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return float32's absolute tolerance for every type: the two GELUs differ by less than 5e-4."""
    return Tolerance(rtol=dtype_tolerance(dtype).rtol, atol=dtype_tolerance(torch.float32).atol)


def quick_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return a tolerance that allows for ``1.702 * x`` rounded to half precision: results at negative inputs are around -0.1."""
    return replace(tolerance(dtype), atol=max(tolerance(dtype).atol, eps_of(dtype) / 2))


def count_flops(inputs: Inputs) -> int:
    rows, columns = output_shape(inputs)
    return FLOPS_PER_OUTPUT[kind_of(inputs)] * rows * columns


def _name(function: str, tokens: int, hidden_dim: int) -> str:
    return f"{GROUPS[function].replace(' (', '_').rstrip(')')}_T{tokens}_D{hidden_dim}"


def _workloads(
    swiglu: Sizes, gelu: Sizes, dtype: str, prefix: str = "", others: Sizes = ()
) -> list[Workload]:
    return helpers.make_workloads(
        AXES, _name, dtype, prefix, swiglu, gelu, gelu, *[others] * (len(GROUPS) - 3), groups=GROUPS
    )


OPERATOR = Operator(
    name="activation",
    title="Activation Functions",
    axes=AXES,
    workload_sets={
        # The SwiGLU sizes are those of huggingface/kernels-benchmarks.
        "default": _workloads(PEER, PEER, "bfloat16"),
        # The others are 32 images in CLIP's large encoder, and the width of Gemma 2 9B.
        "large": _workloads(
            LARGE, ((4096, 4096), (16384, 4096), LARGE[1]), "bfloat16", others=((8224, 4096), LARGE[1])
        ),
        "decode": _workloads(
            [(n, 11008) for n in (1, 8, 64)],
            [(n, 16384) for n in (1, 8, 64)],
            "bfloat16",
            others=((1, 14336), (64, 14336)),
        ),
        # Sizes and dtype of TrainScale.
        "trainscale": _workloads(((2048, 11008),), ((4096, 4096), (16384, 4096)), "float16", "trainscale_"),
        "cpu": _workloads(CPU, CPU, "float32", "cpu_", CPU),
        "cpu_bfloat16": _workloads(CPU, CPU, "bfloat16", "cpu_bf16_"),
        "smoke": _workloads(SMOKE, SMOKE, "float32", "smoke_", SMOKE),
        **model_sets("activation", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=count_flops,
    outputs=(Output(shape=output_shape),),
    slices=helpers.row_slices,
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=reference,  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, tokens=64),
    nonfinite={"nan": (0,), "inf": (0,)},  # -inf may become NaN, as in torch, or 0
    variants={GROUPS["quick_gelu"]: {"tolerance": quick_tolerance}},
    gradients=(0,),
    gradient_slices=helpers.row_slices,
    layouts={
        "two_tensors": {
            GROUPS["swiglu"]: {
                "inputs": lambda *given: two_tensors(make_inputs(*given)),
                "reference": gated,
                "baseline": gated,
                "flops": lambda inputs: FLOPS_PER_OUTPUT[""] * inputs[0].numel(),
                "outputs": (Output(),),
                "edge_cases": edge_cases_of_two_tensors,
                "gradients": (0, 1),
            }
        }
    },
)
