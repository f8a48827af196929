"""Gated delta rule of Gated DeltaNet: a matrix state that decays, and replaces what it holds under a key."""

from __future__ import annotations

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
    Tolerance,
    Workload,
    dtype_tolerance,
    model_sets,
)

AXES = ("function", "batch", "seq_len", "heads", "key_dim", "value_dim")
GROUPS = {"prefill": "Prefill", "step": "Step"}
EPSILON = 1e-6
"""Added to the squared length of a query or key, as in Qwen3-Next."""
CHUNK = 64
"""Tokens that the reference takes at once: one at a time would take a launch for each operation and token."""
ODD_SHAPES = (
    (1, 1, 3, 32, 32),
    (2, 63, 1, 32, 16),
    (1, 64, 2, 16, 32),
    (1, 65, 2, 32, 32),
    (1, 200, 1, 48, 80),
)


def reference(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the output, of the shape of ``v``, and the state after the last token (batch, heads, key_dim, value_dim).

    ``q`` and ``k`` are (batch, seq_len, heads, key_dim), ``v`` (batch, seq_len, heads, value_dim), ``g``, the logarithm of the
    decay, and ``beta`` (batch, seq_len, heads). Queries and keys are normalized here. Without a ``state`` the first is zero.

    For each token the state decays, and then takes in ``beta`` times the outer product of the key and of what the value differs
    from what the state has under the key. What the tokens of a chunk write is a triangular system.
    """
    (length, heads, key_dim), value_dim = k.shape[1:], v.shape[-1]
    q, k, v, g, beta = (one.transpose(1, 2) for one in (q, k, v, g, beta))
    q, k = (one * torch.rsqrt((one * one).sum(-1, keepdim=True) + EPSILON) for one in (q, k))
    # What follows the last token decays by nothing, and writes nothing.
    pad = -length % CHUNK
    q, k, v = (functional.pad(one, (0, 0, 0, pad)).unflatten(2, (-1, CHUNK)) for one in (q, k, v))
    g, beta = (functional.pad(one, (0, pad)).unflatten(2, (-1, CHUNK)) for one in (g, beta))
    since = g.cumsum(-1)
    between = (since[..., None] - since[..., None, :]).tril().exp().tril()
    system = beta[..., None] * (k @ k.transpose(-1, -2)) * between
    both = torch.cat((v, k * since.exp()[..., None]), -1) * beta[..., None]
    solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    values, reads = solved.split((value_dim, key_dim), -1)
    within = (q @ k.transpose(-1, -2)) * between
    q = q * since.exp()[..., None]
    k = (k * (since[..., -1:] - since).exp()[..., None]).transpose(-1, -2)
    decay = since[..., -1].exp()[..., None, None]
    if state is None:
        state = torch.zeros((len(q), heads, key_dim, value_dim), dtype=v.dtype, device=v.device)
    outputs = []
    for chunk in range(q.shape[2]):
        new = values[:, :, chunk] - reads[:, :, chunk] @ state
        outputs.append(q[:, :, chunk] @ state + within[:, :, chunk] @ new)
        state = state * decay[:, :, chunk] + k[:, :, chunk] @ new
    out = torch.cat(outputs, 2)[:, :, :length].transpose(1, 2)
    return out * key_dim**-0.5, state


torch_chunked = helpers.in_single(reference)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return random inputs as in :func:`reference`; ``g`` and the state are in float32.

    Decays of a head are around one value, from 0.5 to nearly 1.
    """
    batch, seq_len, heads, key_dim, value_dim = (int(workload.axes[axis]) for axis in AXES[1:])
    tokens = (batch, seq_len, heads)
    shapes = ((*tokens, key_dim), (*tokens, key_dim), (*tokens, value_dim), tokens)
    q, k, v, beta = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    change, of_head, state = helpers.random_tensors(
        (tokens, (heads,), (batch, heads, key_dim, value_dim)), torch.float32, device, seed + 1
    )
    g = -torch.exp(1.5 * of_head - 3) * functional.softplus(change)
    return q, k, v, g, beta.sigmoid(), state if workload.axes["function"] == "step" else None


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    q, k, v, g, beta, state = inputs
    yield "no decay", (q, k, v, torch.zeros_like(g), beta, state)
    yield "no memory", (q, k, v, torch.full_like(g, -200.0), beta, state)  # the decay underflows to 0
    yield "nothing written", (q, k, v, g, torch.zeros_like(beta), state)
    # Each token replaces what the one before has written: outputs are small differences.
    same = k[:, :1].expand_as(k).contiguous()
    yield "the same key", (q, same, v / 8, g * 0.01, torch.ones_like(beta), state)
    yield "zero keys", (q, torch.zeros_like(k), v, g, beta, state)
    # The epsilon is as large as the squared length.
    yield "small queries", (q * 1e-3, k * 1e-3, v, g, beta, state)
    yield "padded rows", (*helpers.padded_differently(q, k, v), *helpers.padded_differently(g, beta), state)
    yield "heads first in memory", (*(helpers.transposed(one, 1) for one in (q, k, v, g, beta)), state)
    shapes = (shape if state is None else (shape[0], 1, *shape[2:]) for shape in ODD_SHAPES)
    yield from helpers.odd_shapes(workload, AXES[1:], shapes, make_inputs, q.device)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return 1e-5 for float32: sums over many tokens. Outputs are around 0.1, so the absolute part is a quarter of the relative."""
    relative = 1e-5 if dtype == torch.float32 else dtype_tolerance(dtype).rtol
    return Tolerance(rtol=relative, atol=relative / 4)


def state_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance of the state, whose values are around 0.1 to 1, given the type of the queries."""
    relative = tolerance(dtype).rtol
    return Tolerance(rtol=relative, atol=relative)


def count_flops(inputs: Inputs) -> int:
    """Count the recurrent form: a product with the decay, and two operations each for what is known, written and returned."""
    k, v = inputs[1], inputs[2]
    return int(7 * k.numel() * v.shape[-1])


_name = helpers.named(GROUPS, "B{batch}_S{seq_len}_H{heads}_K{key_dim}_V{value_dim}")
_workloads = partial(helpers.make_workloads, AXES, _name, groups=GROUPS)

OPERATOR = Operator(
    name="gated_delta_rule",
    title="Gated Delta Rule",
    axes=AXES,
    workload_sets={
        # The heads of Qwen3-Next-80B-A3B.
        "default": _workloads(
            "bfloat16",
            "",
            ((1, 512, 32, 128, 128), (1, 4096, 32, 128, 128), (4, 2048, 32, 128, 128)),
            ((1, 1, 32, 128, 128), (8, 1, 32, 128, 128), (64, 1, 32, 128, 128)),
        ),
        "cpu": _workloads("float32", "cpu_", ((1, 256, 4, 64, 64),), ((1, 1, 32, 128, 128),)),
        "smoke": _workloads("float32", "smoke_", ((1, 70, 2, 32, 32),), ((2, 1, 2, 32, 32),)),
        **model_sets("gated_delta_rule", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=count_flops,
    outputs=(
        Output(shape=lambda inputs: inputs[2].shape),
        Output(
            "state",
            "float32",
            state_tolerance,
            lambda inputs: (len(inputs[0]), *inputs[1].shape[2:], inputs[2].shape[-1]),
        ),
    ),
    edge_cases=edge_cases,
    tolerance=tolerance,
    multiples={"key_dim": 16},  # keys of few elements, which repeat each other, add up what a state loses
    baseline=torch_chunked,
    smaller=partial(helpers.limit_axes, batch=2, seq_len=200, heads=4),
)
