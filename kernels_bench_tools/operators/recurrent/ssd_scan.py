"""Scan of Mamba-2 (state space duality): a matrix state for each head, with one decay for all of it."""

# ruff: noqa: N803, N806 - A, B, C and D are the names of the paper
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Tolerance, Workload, eps_of

AXES = ("function", "batch", "seq_len", "heads", "head_dim", "groups", "d_state")
GROUPS = {"prefill": "Prefill", "step": "Step"}
STEPS = (1e-3, 1.0)
"""Step sizes, after softplus."""
CHUNK = 64
"""Tokens that the reference takes at once: one at a time would take a launch for each operation and token."""
ODD_SHAPES = (
    (1, 1, 2, 16, 1, 16),
    (2, 63, 1, 16, 1, 32),
    (1, 64, 4, 32, 2, 16),
    (1, 65, 2, 16, 1, 16),
    (1, 257, 2, 48, 2, 80),
)


def reference(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the output, of the shape of ``x``, and the state after the last token (batch, heads, head_dim, d_state).

    ``x`` is (batch, seq_len, heads, head_dim), ``dt`` (batch, seq_len, heads), ``A``, ``D`` and ``dt_bias`` (heads,), ``B`` and
    ``C`` (batch, seq_len, groups, d_state), shared by the heads of a group. Without a ``state`` the first is zero.

    For each token the state decays by ``exp(step * A)``, and then takes in ``step`` times the outer product of the value and ``B``.
    """
    steps = functional.softplus(dt + dt_bias)
    B, C = (one.repeat_interleave(x.shape[2] // one.shape[2], dim=2).transpose(1, 2) for one in (B, C))
    value, decay = (x * steps[..., None]).transpose(1, 2), (steps * A).transpose(1, 2)
    # What follows the last token decays by nothing, and writes nothing.
    pad = -x.shape[1] % CHUNK
    value, B, C = (functional.pad(one, (0, 0, 0, pad)).unflatten(2, (-1, CHUNK)) for one in (value, B, C))
    decay = functional.pad(decay, (0, pad)).unflatten(2, (-1, CHUNK))
    later = torch.ones((CHUNK, CHUNK), dtype=torch.bool, device=x.device).tril(-1)
    # Sums of what is between two tokens: differences of sums from the first one would lose digits.
    between = torch.where(later, decay[..., None], 0.0).cumsum(-2).exp().tril()
    out = ((C @ B.transpose(-1, -2)) * between) @ value
    written = (value * between[..., -1, :, None]).transpose(-1, -2) @ B
    since = decay.cumsum(-1).exp()[..., None]
    if state is None:
        state = torch.zeros((len(x), *x.shape[2:], B.shape[-1]), dtype=A.dtype, device=x.device)
    before = []
    for chunk in range(out.shape[2]):
        before.append(state)
        state = state * since[:, :, chunk, -1:] + written[:, :, chunk]
    out = out + (C * since) @ torch.stack(before, 2).transpose(-1, -2)
    return out.flatten(2, 3)[:, :, : x.shape[1]].transpose(1, 2) + x * D[:, None], state


torch_scan = helpers.in_single(reference)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random inputs as in :func:`reference`; ``A``, ``D``, ``dt_bias`` and the state are in float32.

    ``A`` is -1 to -16, as in Mamba-2 before training, and ``B`` is so small that outputs are around 1.
    """
    batch, seq_len, heads, head_dim, groups, d_state = (int(workload.axes[axis]) for axis in AXES[1:])
    tokens = (batch, seq_len)
    shapes = ((*tokens, heads, head_dim), (*tokens, heads), *[(*tokens, groups, d_state)] * 2)
    x, dt, B, C = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    shapes = ((heads,), (batch, heads, head_dim, d_state))
    D, state = helpers.random_tensors(shapes, torch.float32, device, seed + 1)
    generator = torch.Generator(device=device).manual_seed(seed)
    A, shares = torch.rand((2, heads), generator=generator, device=device)
    low, high = torch.tensor(STEPS).log().tolist()
    steps = torch.exp(low + (high - low) * shares)
    dt_bias = steps + torch.log(-torch.expm1(-steps))  # the inverse of softplus
    scale = d_state**-0.5
    state = state.mul_(scale) if workload.axes["function"] == "step" else None
    return x, dt.mul_(0.5), -1 - 15 * A, B.mul_(4 * scale), C, D, dt_bias, state


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, dt, A, B, C, D, dt_bias, state = inputs
    yield "no decay", (x, dt, torch.zeros_like(A), B / 8, C, D, dt_bias, state)  # sums of all tokens
    yield "no memory", (x, dt, A * 1e6, B, C, D, dt_bias, state)  # the decay underflows to 0
    yield "steps of zero", (x, torch.full_like(dt, -200.0), A, B, C, D, dt_bias, state)
    # softplus is the identity there, and exp would overflow in float32.
    yield "large steps", (x, torch.full_like(dt, 100.0), A, B / 100, C, D, dt_bias, state)
    yield (
        "padded rows",
        (*helpers.padded_differently(x, dt), A, *helpers.padded_differently(B, C), D, dt_bias, state),
    )
    yield "heads first in memory", helpers.changed(inputs, partial(helpers.transposed, axis=1), 0, 1)
    shapes = (shape if state is None else (shape[0], 1, *shape[2:]) for shape in ODD_SHAPES)
    yield from helpers.odd_shapes(workload, AXES[1:], shapes, make_inputs, x.device)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return 1e-5 for float32: sums over many tokens.

    In half precision all known kernels round the operands of products, and the largest terms of a sum are a hundred times its
    usual value.
    """
    found = helpers.or_in_single(1e-5)(dtype)
    return found if dtype == torch.float32 else replace(found, products=eps_of(dtype) / 2)


def count_flops(inputs: Inputs) -> int:
    """Count the recurrent form: a decay, a product and a sum for what is written, and two operations for what is returned."""
    x, B = inputs[0], inputs[3]
    return int(x.numel() * (5 * B.shape[-1] + 3))


_name = helpers.named(GROUPS, "B{batch}_S{seq_len}_H{heads}_P{head_dim}_G{groups}_N{d_state}")


_workloads = partial(helpers.make_workloads, AXES, _name, groups=GROUPS)

_CODESTRAL, _BAMBA = (128, 64, 8, 128), (128, 64, 1, 128)
"""Of Mamba-Codestral-7B, also Nemotron-H-8B, and of Bamba-9B."""

OPERATOR = Operator(
    name="ssd_scan",
    title="SSD Scan",
    axes=AXES,
    multiples={"heads": 0, "groups": 0},  # each group serves as many heads
    workload_sets={
        "default": _workloads(
            "bfloat16",
            "",
            ((1, 512, *_CODESTRAL), (1, 4096, *_CODESTRAL), (4, 2048, *_BAMBA)),
            ((1, 1, *_CODESTRAL), (8, 1, *_CODESTRAL), (64, 1, *_BAMBA)),
        ),
        "cpu": _workloads("float32", "cpu_", ((1, 256, 8, 32, 1, 64),), ((1, 1, 32, 64, 1, 128),)),
        "smoke": _workloads("float32", "smoke_", ((1, 70, 4, 16, 2, 32),), ((2, 1, 4, 16, 2, 32),)),
    },
    inputs=make_inputs,
    reference=reference,
    flops=count_flops,
    outputs=(
        Output(),
        Output(
            "state",
            "float32",
            tolerance,
            lambda inputs: (len(inputs[0]), *inputs[0].shape[2:], inputs[3].shape[-1]),
        ),
    ),
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=torch_scan,
    smaller=partial(helpers.limit_axes, batch=2, seq_len=200, heads=8),
    parameters=(2, 5, 6),
)
