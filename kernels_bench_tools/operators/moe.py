"""Mixtures of experts: each token's feed-forward layers, chosen by a router, as ``FusedMoE`` of the models has them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, model_sets, size_in_bytes
from kernels_bench_tools.operators import mlp

AXES = ("tokens", "experts", "top_k", "hidden_dim", "intermediate_dim")
LARGE, LARGE_LOGITS = 30.0, 100.0
ODD_SHAPES = ((37, 5, 2, 136, 72), (1, 3, 3, 64, 40))


def reference(x: Tensor, router_logits: Tensor, w13: Tensor, w2: Tensor, top_k: int) -> Tensor:
    """Return (tokens, hidden_dim), the shape of ``x``: the weighted sum of the results of each token's experts.

    The experts of a token are those with the ``top_k`` largest of its ``router_logits`` (tokens, experts), and their
    weights the softmax over these. ``w13`` is (experts, 2 * intermediate_dim, hidden_dim) with the gate first, ``w2``
    (experts, hidden_dim, intermediate_dim).
    """
    best, chosen = router_logits.topk(top_k, dim=-1)
    weights = best.softmax(dim=-1)
    out = torch.zeros_like(x)
    for expert, (first, second) in enumerate(zip(w13, w2, strict=True)):
        token, choice = (chosen == expert).nonzero(as_tuple=True)
        out.index_add_(0, token, mlp.reference(x[token], first, second) * weights[token, choice, None])
    return out


def torch_moe(x: Tensor, router_logits: Tensor, w13: Tensor, w2: Tensor, top_k: int) -> Tensor:
    """Compute :func:`reference` as ``FusedMoE`` does, with torch's grouped product."""
    weights, experts = router_logits.softmax(dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    order, ends = by_expert(experts, len(w13))
    down = of_experts(x[order // top_k], w13, w2, ends)
    by_token = torch.empty_like(down).index_copy_(0, order, down).unflatten(0, (-1, top_k))
    return (by_token * weights[..., None]).sum(dim=1).to(x.dtype)


def of_experts(x: Tensor, w13: Tensor, w2: Tensor, ends: Tensor) -> Tensor:
    """Return what experts compute of rows (rows, hidden_dim), with torch's grouped product; ``ends`` as of :func:`by_expert`."""
    gate, up = functional.grouped_mm(x, w13.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    return functional.grouped_mm(functional.silu(gate) * up, w2.transpose(1, 2), offs=ends)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random ``x`` (tokens, hidden_dim), ``router_logits`` (tokens, experts), ``w13``, ``w2`` and ``top_k``.

    All experts are equally likely. The logits of a token are normally distributed and all different, also after
    rounding: of equal ones either may be chosen. Gate and up have a variance of 1.
    """
    tokens, experts, top_k, hidden, intermediate = (int(workload.axes[axis]) for axis in AXES)
    shapes = ((tokens, hidden), (experts, 2 * intermediate, hidden), (experts, hidden, intermediate))
    x, w13, w2 = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    generator = torch.Generator().manual_seed(seed)
    logits = logits_of(torch.rand((tokens, experts), generator=generator).argsort(dim=-1), generator).to(x)
    return x, logits, w13.mul_(hidden**-0.5), w2.mul_(intermediate**-0.5), top_k


def logits_of(ranks: Tensor, generator: torch.Generator) -> Tensor:
    """Return normally distributed logits (tokens, experts) in this order, other ones for each token."""
    scale = 0.5 + torch.rand((len(ranks), 1), generator=generator)
    return torch.special.ndtri((ranks + 0.5) / ranks.shape[1]) * scale


def by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return the order of choices by expert, and where those of each expert end, int32."""
    chosen, order = chosen.flatten().sort(stable=True)
    numbers = torch.arange(experts, device=chosen.device)
    return order, torch.searchsorted(chosen, numbers, right=True, out_int32=True)


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yield edge cases; where the intermediate values are large, ``w2`` is small, so that results are not."""
    x, logits, w13, w2, top_k = inputs
    some = x.clone()
    some[::2] = 0
    yield "rows of zeros", (some, logits, w13, w2, top_k)
    yield "the same experts for all", (x, logits[:1].expand_as(logits).contiguous(), w13, w2, top_k)
    # exp overflows in float32 for logits above 88.
    yield f"logits times {LARGE_LOGITS:g}", (x, logits * LARGE_LOGITS, w13, w2, top_k)
    yield f"x times {LARGE:g}", (x * LARGE, logits, w13, w2 / LARGE**2, top_k)
    yield "one expert for each token", (x, logits, w13, w2, 1)
    yield "column-major weights", (x, logits, helpers.transposed(w13, 1), helpers.transposed(w2, 1), top_k)
    yield "padded rows", (*(helpers.padded_rows(value) for value in (x, logits)), w13, w2, top_k)
    yield from helpers.odd_shapes(workload, AXES, ODD_SHAPES, make_inputs, x.device)


def flops(inputs: Inputs) -> int:
    x, _, w13, w2, top_k = inputs
    return 2 * len(x) * int(top_k) * (w13[0].numel() + w2[0].numel())


def bytes_of_chosen_experts(inputs: Inputs) -> dict[int, int]:
    """Return the bytes of the weights of all experts that some token chooses."""
    _, logits, w13, w2, top_k = inputs
    count = logits.topk(top_k, dim=-1).indices.unique().numel()
    return {2: count * size_in_bytes(w13[0]), 3: count * size_in_bytes(w2[0])}


_name = "T{tokens}_E{experts}_K{top_k}_D{hidden_dim}_I{intermediate_dim}".format
_workloads = partial(helpers.make_workloads, AXES, _name)

_MIXTRAL, _QWEN = (8, 2, 4096, 14336), (128, 8, 2048, 768)
"""Of Mixtral-8x7B and of Qwen3-30B-A3B."""

OPERATOR = Operator(
    name="moe",
    title="Mixtures of Experts",
    axes=AXES,
    workload_sets={
        "default": _workloads(
            "bfloat16", "", tuple((tokens, *sizes) for sizes in (_MIXTRAL, _QWEN) for tokens in (2048, 1, 32))
        ),
        "cpu": _workloads("float32", "cpu_", ((1, 8, 2, 256, 512), (32, 8, 2, 256, 512))),
        "smoke": _workloads("float32", "smoke_", ((12, 6, 2, 64, 48),)),
        **model_sets("moe", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=flops,
    edge_cases=edge_cases,
    tolerance=mlp.tolerance,
    baseline=torch_moe,
    smaller=partial(helpers.limit_axes, tokens=64, experts=16, hidden_dim=256, intermediate_dim=384),
    multiples={"hidden_dim": 8, "intermediate_dim": 8},  # 16 bytes
    nonfinite={"nan": (0,)},
    whole_rows=(1,),  # with logits of other rows, some of a row would be equal
    parameters=(2, 3),
    partly_read=bytes_of_chosen_experts,
)
