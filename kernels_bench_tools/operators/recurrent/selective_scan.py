"""Selective scan of Mamba: a recurrence with one state vector for each channel, whose decay and inputs depend on the token."""

# ruff: noqa: N803, N806 - A, B, C and D are the names of the paper
from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Workload, model_sets

AXES = ("function", "batch", "dim", "seq_len", "d_state")
GROUPS = {"prefill": "Prefill", "step": "Step"}
FLOPS_PER_STATE, FLOPS_PER_OUTPUT = 7, 10
"""Of a state: two products and an exponential for its decay, two products for its input and a sum, and two operations for
its part of the output. Of an output: softplus, ``D`` and the gate with SiLU."""
STEPS = (1e-3, 1.0)
"""Step sizes, after softplus: from a long memory to one of a token or two."""
ODD_SHAPES = ((1, 3, 1, 16), (2, 5, 67, 16), (1, 2, 257, 16), (1, 3, 128, 8))


def reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    dt_bias: Tensor,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the gated output (batch, dim, seq_len) and the state after the last token (batch, dim, d_state).

    ``x``, ``dt`` and ``z`` are (batch, dim, seq_len), ``A`` (dim, d_state), ``B`` and ``C`` (batch, d_state, seq_len), ``D``
    and ``dt_bias`` (dim,). Without a ``state`` the first is zero.

    For each token a state decays by ``exp(step * A)``, and then takes in ``step * x * B``.
    """
    steps = functional.softplus(dt + dt_bias[:, None])
    decay = torch.exp(steps[..., None] * A[:, None])
    states = (steps * x)[..., None] * B.transpose(1, 2)[:, None]
    if state is not None:
        states = torch.cat((states[:, :, :1] + decay[:, :, :1] * state[:, :, None], states[:, :, 1:]), dim=2)
    tokens = 1
    while tokens < x.shape[-1]:  # each state is that of the tokens up to it, of twice as many after each pass
        states = torch.cat(
            (states[:, :, :tokens], states[:, :, tokens:] + decay[:, :, tokens:] * states[:, :, :-tokens]),
            dim=2,
        )
        decay = torch.cat((decay[:, :, :tokens], decay[:, :, tokens:] * decay[:, :, :-tokens]), dim=2)
        tokens *= 2
    out = (states * C.transpose(1, 2)[:, None]).sum(-1) + D[:, None] * x
    return out * functional.silu(z), states[:, :, -1]


torch_scan = helpers.in_single(reference)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random inputs as in :func:`reference`; ``A``, ``D``, ``dt_bias`` and the state are in float32.

    ``A`` is that of Mamba before training, -1 to -d_state, and the step sizes of channels are those of :data:`STEPS`.
    """
    batch, dim, seq_len, d_state = (int(workload.axes[axis]) for axis in AXES[1:])
    shapes = [(batch, dim, seq_len)] * 3 + [(batch, d_state, seq_len)] * 2
    x, dt, z, B, C = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    D, state = helpers.random_tensors([(dim,), (batch, dim, d_state)], torch.float32, device, seed + 1)
    A = -torch.arange(1.0, d_state + 1, device=device).repeat(dim, 1)
    low, high = torch.tensor(STEPS).log().tolist()
    generator = torch.Generator(device=device).manual_seed(seed)
    steps = torch.exp(low + (high - low) * torch.rand(dim, generator=generator, device=device))
    dt_bias = steps + torch.log(-torch.expm1(-steps))  # the inverse of softplus
    return x, dt.mul_(0.5), A, B, C, D, z, dt_bias, state if workload.axes["function"] == "step" else None


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, dt, A, B, C, D, z, dt_bias, state = inputs
    yield "no decay", (x, dt, torch.zeros_like(A), B, C, D, z, dt_bias, state)
    yield "no memory", (x, dt, A * 1e6, B, C, D, z, dt_bias, state)  # the decay underflows to 0
    yield "steps of zero", helpers.changed(inputs, lambda one: torch.full_like(one, -200.0), 1)
    # softplus is the identity there, and exp would overflow in float32.
    yield "large steps", (x, torch.full_like(dt, 100.0), A, B / 100, C, D, z, dt_bias, state)
    yield "large gates", (x, dt, A, B, C, D, z * 50, dt_bias, state)
    yield "channels last", helpers.changed(inputs, partial(helpers.transposed, axis=1), 0, 1, 3, 4, 6)
    yield (
        "padded rows",
        (*helpers.padded_differently(x, dt), A, *helpers.padded_differently(B, C), D, z, dt_bias, state),
    )
    lengths = (
        (batch, dim, 1, d_state) if state is not None else shape
        for shape in ODD_SHAPES
        for batch, dim, _, d_state in [shape]
    )
    yield from helpers.odd_shapes(workload, AXES[1:], lengths, make_inputs, x.device)


tolerance = helpers.or_in_single(1e-5)
"""A rounding of the decay is repeated at every token that it is multiplied at."""


def count_flops(inputs: Inputs) -> int:
    x, A = inputs[0], inputs[2]
    return int(x.numel() * (FLOPS_PER_STATE * A.shape[1] + FLOPS_PER_OUTPUT))


_name = helpers.named(GROUPS, "B{batch}_D{dim}_S{seq_len}_N{d_state}")
_workloads = partial(helpers.make_workloads, AXES, _name, groups=GROUPS)

OPERATOR = Operator(
    name="selective_scan",
    title="Selective Scan",
    axes=AXES,
    workload_sets={
        # The channels of FalconMamba-7B, and of Mamba-2.8B.
        "default": _workloads(
            "bfloat16",
            "",
            ((1, 8192, 512, 16), (1, 8192, 2048, 16), (4, 8192, 1024, 16), (1, 5120, 2048, 16)),
            ((1, 8192, 1, 16), (8, 8192, 1, 16), (64, 8192, 1, 16)),
        ),
        "cpu": _workloads("float32", "cpu_", ((1, 256, 128, 16),), ((1, 1024, 1, 16),)),
        "smoke": _workloads("float32", "smoke_", ((2, 8, 70, 16),), ((2, 24, 1, 16),)),
        **model_sets("selective_scan", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=count_flops,
    outputs=(
        Output(),
        Output("state", "float32", tolerance, lambda inputs: (*inputs[0].shape[:2], inputs[2].shape[1])),
    ),
    # The states of all tokens and channels would need much memory in float64.
    slices=helpers.sliced(1, 1, 0, None, None, 0, 1, 0, 1, into=1, times=1 / 16),
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=torch_scan,
    smaller=partial(helpers.limit_axes, batch=2, dim=32, seq_len=300),
    parameters=(2, 5, 7),
)
