"""Mixture of experts of Llama 4: one routed expert for each token, whose input is scaled, and one that is shared by all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload
from kernels_bench_tools.operators import mlp, moe

AXES = ("tokens", "experts", "hidden_dim", "intermediate_dim", "routing")
LARGE_LOGITS = 100.0
ODD_SHAPES = ((37, 5, 136, 72, "uniform"), (1, 3, 64, 40, "uniform"), (50, 4, 64, 48, "skewed"))


def reference(
    x: Tensor, router_logits: Tensor, w13: Tensor, w2: Tensor, shared_w13: Tensor, shared_w2: Tensor
) -> Tensor:
    """Return (tokens, hidden_dim), the shape of ``x``: the result of the shared expert plus that of each token's own.

    A token's own expert is that with the largest of its ``router_logits`` (tokens, experts), and gets ``x`` times the
    sigmoid of this logit. ``w13`` is (experts, 2 * intermediate_dim, hidden_dim) with the gate first, ``w2`` (experts,
    hidden_dim, intermediate_dim); the shared expert's are the same without the first axis.
    """
    best, chosen = router_logits.max(dim=-1)
    scaled = x * best.sigmoid()[:, None]
    out = mlp.reference(x, shared_w13, shared_w2)
    for expert, (first, second) in enumerate(zip(w13, w2, strict=True)):
        (token,) = (chosen == expert).nonzero(as_tuple=True)
        out.index_add_(0, token, mlp.reference(scaled[token], first, second))
    return out


def torch_moe(
    x: Tensor, router_logits: Tensor, w13: Tensor, w2: Tensor, shared_w13: Tensor, shared_w2: Tensor
) -> Tensor:
    """Compute :func:`reference` with torch's grouped product, without waiting for the device."""
    best, chosen = router_logits.max(dim=-1)
    order, ends = moe.by_expert(chosen, len(w13))
    scaled = (x * best.float().sigmoid()[:, None]).to(x.dtype)[order]
    routed = moe.of_experts(scaled, w13, w2, ends)
    return mlp.reference(x, shared_w13, shared_w2).index_add_(0, order, routed)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random inputs as in :func:`reference`.

    With ``uniform`` routing all experts are equally likely; with ``skewed`` routing expert n gets a share of the tokens
    that is proportional to 1 / (n + 1). The logits of a token are all different, also after rounding.
    """
    tokens, experts, hidden, intermediate = (int(workload.axes[axis]) for axis in AXES[:4])
    one = ((2 * intermediate, hidden), (hidden, intermediate))
    shapes = ((tokens, hidden), *((experts, *shape) for shape in one), *one)
    x, *weights = helpers.random_tensors(shapes, workload.torch_dtype, device, seed)
    w13, w2, shared_w13, shared_w2 = (weight.mul_(weight.shape[-1] ** -0.5) for weight in weights)
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.rand((tokens, experts), generator=generator).argsort(dim=-1)
    if workload.axes["routing"] == "skewed":
        shares = 1 / torch.arange(1.0, experts + 1)
        wanted = shares.multinomial(tokens, replacement=True, generator=generator)[:, None]
        best = ranks.argmax(dim=-1, keepdim=True)
        ranks.scatter_(1, best, ranks.gather(1, wanted)).scatter_(1, wanted, experts - 1)
    return x, moe.logits_of(ranks, generator).to(x), w13, w2, shared_w13, shared_w2


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    x, logits, w13, w2, *shared = inputs
    yield "the same expert for all", (x, logits[:1].expand_as(logits).contiguous(), w13, w2, *shared)
    yield "negative logits", (x, logits - 5, w13, w2, *shared)  # not a softmax over them
    yield f"logits times {LARGE_LOGITS:g}", (x, logits * LARGE_LOGITS, w13, w2, *shared)
    yield "nothing shared", (x, logits, w13, w2, *map(torch.zeros_like, shared))
    yield "padded rows", (*map(helpers.padded_rows, (x, logits)), w13, w2, *shared)
    yield from helpers.odd_shapes(workload, AXES, ODD_SHAPES, make_inputs, x.device)


def flops(inputs: Inputs) -> int:
    x, _, _, _, shared_w13, shared_w2 = inputs
    return 2 * 2 * len(x) * (shared_w13.numel() + shared_w2.numel())


_name = "T{tokens}_E{experts}_D{hidden_dim}_I{intermediate_dim}_{routing}".format
_workloads = partial(helpers.make_workloads, AXES, _name)

_SCOUT = (16, 5120, 8192)

OPERATOR = Operator(
    name="llama4_moe",
    title="Llama 4 Mixture of Experts",
    axes=AXES,
    workload_sets={
        # Of Llama 4 Scout.
        "default": _workloads(
            "bfloat16",
            "",
            tuple(
                (tokens, *_SCOUT, routing) for routing in ("uniform", "skewed") for tokens in (2048, 32, 1)
            ),
        ),
        "cpu": _workloads("float32", "cpu_", ((32, 8, 256, 512, "uniform"), (32, 8, 256, 512, "skewed"))),
        "smoke": _workloads("float32", "smoke_", ((12, 6, 64, 48, "uniform"), (24, 6, 64, 48, "skewed"))),
    },
    inputs=make_inputs,
    reference=reference,
    flops=flops,
    edge_cases=edge_cases,
    tolerance=mlp.tolerance,
    baseline=torch_moe,
    smaller=partial(helpers.limit_axes, tokens=64, experts=16, hidden_dim=256, intermediate_dim=384),
    whole_rows=(1,),  # with logits of other rows, some of a row would be equal
    parameters=(2, 3, 4, 5),
    partly_read=lambda inputs: moe.bytes_of_chosen_experts((*inputs[:4], 1)),
)
