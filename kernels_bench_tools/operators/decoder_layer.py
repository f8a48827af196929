"""A decoder layer of Llama, Qwen2 and Qwen3, with a paged cache: the module of the models' level 3 as a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Output,
    Tolerance,
    Workload,
    model_sets,
    product_tolerance,
    size_in_bytes,
)
from kernels_bench_tools.models.baseline.forward_context import (
    AttentionMetadata,
    plan_batch,
    set_forward_context,
)
from kernels_bench_tools.models.baseline.L1 import RotaryEmbedding
from kernels_bench_tools.models.baseline.L3 import LlamaDecoderLayer
from kernels_bench_tools.models.config import ModelConfig
from kernels_bench_tools.operators.mlp import MOST_MEAN

AXES = (
    *("kind", "residual", "sequences", "tokens", "context", "hidden_dim"),
    *("heads", "kv_heads", "head_dim", "intermediate_dim", "block_size"),
)
WEIGHTS = (
    "input_layernorm.weight",
    "self_attn.qkv_proj.weight",
    "self_attn.qkv_proj.bias",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_up_proj.weight",
    "mlp.down_proj.weight",
)
"""Parameters of the module in the order of the inputs; layers without one of them get None."""
EPSILON = 1e-5
LARGE = 100.0
CHUNK = 13
"""Earlier tokens of the prompts of an edge case: they end inside of a block of the cache."""

Kernels = Mapping[type[nn.Module], Callable[..., Any]]
"""What replaces ``forward`` of the modules of a class, such as ``RMSNorm`` of level 1."""
Layer = Callable[..., tuple[Tensor, Tensor, Tensor]]


def model_config(
    kind: Any, hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, **others: Any
) -> ModelConfig:
    """Return a model with layers of these sizes; the rotary embedding's table is given to it.

    It has one layer and one token unless ``others``, fields of :class:`ModelConfig`, say otherwise.
    """
    ones = dict.fromkeys(("num_hidden_layers", "vocab_size", "max_position_embeddings"), 1)
    return ModelConfig(
        name="model",
        model_type=kind,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=1.0,
        **{"rms_norm_eps": EPSILON, **ones, **others},
    )


def _module(kernels: Kernels, *sizes: Any, eps: float) -> LlamaDecoderLayer:
    """Return a layer without weights, of a :func:`model_config` of these sizes, with these kernels."""
    config = model_config(*sizes, rms_norm_eps=eps)
    with torch.device("meta"):
        rotary = RotaryEmbedding(config.head_dim, max_position_embeddings=1, base=1.0)
        module = LlamaDecoderLayer(config, rotary)
    set_kernels(module, kernels)
    return module


def set_kernels(module: nn.Module, kernels: Kernels) -> None:
    """Replace ``forward`` of a module and of those inside, if their classes are among these."""
    for one in module.modules():
        if type(one) in kernels:
            one.forward = partial(kernels[type(one)], one)


def layer_with(kernels: Kernels | None = None) -> Layer:
    """Return the layer as a function of the operator's inputs, which writes new keys and values into the cache."""
    module_of = cache(partial(_module, kernels or {}))

    def layer(
        hidden: Tensor,
        residual: Tensor | None,
        kv_cache: Tensor,
        positions: Tensor,
        slots: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        cos_sin: Tensor,
        *weights_eps_context: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        *weights, eps, context = weights_eps_context
        given = {name: weight for name, weight in zip(WEIGHTS, weights, strict=True) if weight is not None}
        heads = given["self_attn.o_proj.weight"].shape[1] // kv_cache.shape[-1]
        inside = given["mlp.down_proj.weight"].shape[1]
        biased = "qwen2" if "self_attn.qkv_proj.bias" in given else "llama"
        kind = "qwen3" if "self_attn.q_norm.weight" in given else biased
        module = module_of(kind, hidden.shape[1], heads, *kv_cache.shape[-2:], inside, eps=eps)
        module.self_attn.kv_cache = kv_cache
        given["self_attn.rotary_emb.cos_sin_cache"] = cos_sin
        with set_forward_context(batch_of(slots, block_tables, seq_lens, context)):
            out, total = functional_call(module, given, (positions, hidden, residual))
        module.self_attn.kv_cache = None  # so that its memory can be freed
        return out, total, kv_cache

    return layer


def batch_of(slots: Tensor, block_tables: Tensor, seq_lens: Tensor, context: int) -> AttentionMetadata:
    """Return what attention needs to know of sequences that all have ``context`` tokens, and as many new ones."""
    count = len(seq_lens)
    each = len(slots) // count
    return AttentionMetadata(
        query_lens=(each,) * count,
        lengths=(context,) * count,
        num_decodes=count if each == 1 else 0,
        seq_lens=seq_lens,
        block_tables=block_tables,
        slot_mapping=slots,
    )


def random_batch(
    sequences: int, tokens: int, context: int, block_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return positions, slots, block tables and lengths; the blocks of the cache are dealt out in random order."""
    each = -(-context // block_size)
    tables = torch.randperm(sequences * each, generator=generator).view(sequences, each)
    positions, batch = plan_batch((tokens,) * sequences, (context,) * sequences, tables, block_size)
    return positions, batch.slot_mapping, tables, batch.seq_lens


def random_cos_sin(positions: int, head_dim: int, generator: torch.Generator) -> Tensor:
    """Return (positions, head_dim) of random angles: with the usual frequencies the first tokens and the last columns hardly turn."""
    shape = positions, head_dim // 2
    angle = torch.rand(shape, generator=generator, device=generator.device) * (2 * math.pi)
    return torch.cat((angle.cos(), angle.sin()), -1)


torch_layer = layer_with()


def reference(hidden: Tensor, residual: Tensor | None, kv_cache: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return hidden states and residual (tokens, hidden_dim), whose sum is the layer's output, and the new cache.

    ``kv_cache`` is (2, blocks, block_size, kv_heads, head_dim) and stays as it is. ``rest`` is ``positions`` and
    ``slots`` (tokens,), ``block_tables`` (sequences, blocks of each), ``seq_lens`` (sequences,), ``cos_sin``
    (positions, head_dim), the weights as in ``WEIGHTS``, the epsilon of the norms, and the tokens of each sequence
    with the new ones.
    """
    return torch_layer(hidden, residual, kv_cache.clone(), *rest)


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return random inputs as :func:`reference` describes them: an earlier layer's results, a cache, and weights.

    Each sequence has ``context`` tokens, the last ``tokens`` of which are new. Products have a variance of 1.
    """
    sizes = (int(workload.axes[axis]) for axis in AXES[2:])
    sequences, tokens, context, columns, heads, kv_heads, head_dim, inside, block_size = sizes
    dtype, kind = workload.torch_dtype, workload.axes["kind"]
    blocks = sequences * -(-context // block_size)
    rows, projected = sequences * tokens, (heads + 2 * kv_heads) * head_dim
    shapes = [
        *((rows, columns), (rows, columns), (2, blocks, block_size, kv_heads, head_dim)),
        *((columns,), (projected, columns), (projected,), (head_dim,), (head_dim,)),
        *((columns, heads * head_dim), (columns,), (2 * inside, columns), (columns, inside)),
    ]
    hidden, residual, kv_cache, *weights = helpers.random_tensors(shapes, dtype, device, seed)
    for name, weight in zip(WEIGHTS, weights, strict=True):
        if "norm" in name:
            weight.mul_(0.1).add_(1)
        elif weight.dim() > 1:
            weight.mul_(weight.shape[1] ** -0.5)
    left_out = {"llama": (2, 3, 4), "qwen2": (3, 4), "qwen3": (2,)}[str(kind)]
    generator = torch.Generator().manual_seed(seed)
    indices = random_batch(sequences, tokens, context, block_size, generator)
    return (
        hidden,
        residual if workload.axes["residual"] else None,
        kv_cache,
        *(index.to(device) for index in indices),
        random_cos_sin(context, head_dim, generator).to(device=device, dtype=dtype),
        *(None if number in left_out else weight for number, weight in enumerate(weights)),
        EPSILON,
        context,
    )


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    hidden, residual, kv_cache, positions, slots, tables, *rest = inputs
    yield "zeros", helpers.changed(inputs, torch.zeros_like, 0, 1)
    yield f"values times {LARGE:g}", helpers.changed(inputs, lambda value: value * LARGE, 0, 1)
    yield "padded rows", helpers.changed(inputs, helpers.padded_rows, 0, 1)
    beyond = large_after_the_end(kv_cache, tables, rest[-1])
    yield "large values after the end", (hidden, residual, beyond, positions, slots, tables, *rest)
    yield from chunks(workload, make_inputs, hidden.device)


def chunks(
    workload: Workload, make: Callable[..., Inputs], device: torch.device
) -> Iterator[tuple[str, Inputs]]:
    """Yield, of prompts, a batch in which the last tokens of each are new, and the others are in the cache."""
    tokens = int(workload.axes["tokens"])
    if tokens > 1:
        longer = helpers.with_axes(workload, context=tokens + CHUNK)
        yield f"prompts after {CHUNK} tokens", make(longer, device, workload.seed + 1000)


def large_after_the_end(kv_cache: Tensor, tables: Tensor, context: int) -> Tensor:
    """Return a copy of a cache (..., blocks, block_size, kv_heads, head_dim) with large values where no token is."""
    slots = kv_cache.flatten(-4, -3).clone()
    used = torch.zeros(slots.shape[-3], dtype=torch.bool, device=slots.device)
    position, size = torch.arange(context, device=tables.device), kv_cache.shape[-3]
    used[(tables[:, position // size] * size + position % size).flatten()] = True
    slots[..., ~used, :, :] = LARGE
    return slots.view(kv_cache.shape)


def flops(inputs: Inputs) -> int:
    """Count the products with weights, and two multiply-adds per pair of query and key and element of a head."""
    hidden, _, _, _, _, _, seq_lens, _, *weights = inputs
    matrices = [weight for weight in weights if isinstance(weight, Tensor) and weight.dim() > 1]
    columns = weights[WEIGHTS.index("self_attn.o_proj.weight")].shape[1]
    pairs = attended_pairs(len(hidden), len(seq_lens), inputs[-1])
    return 2 * len(hidden) * sum(weight.numel() for weight in matrices) + 4 * pairs * columns


def attended_pairs(tokens: int, sequences: int, context: int) -> int:
    """Return the pairs of a new token and one that it attends to, if all sequences have ``context`` tokens."""
    each = tokens // sequences
    return tokens * context - sequences * (each * (each - 1) // 2)


def bytes_of_tokens(inputs: Inputs) -> dict[int, int]:
    """Return the bytes of the earlier tokens' keys and values, and of the angles of the new tokens."""
    hidden, _, kv_cache, _, _, _, seq_lens, cos_sin, *_ = inputs
    earlier = len(seq_lens) * inputs[-1] - len(hidden)
    new = len(hidden) // len(seq_lens)
    return {2: 2 * earlier * size_in_bytes(kv_cache[0, 0, 0]), 7: new * size_in_bytes(cos_sin[0])}


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return four times the default tolerance in half precision, and a limit of the mean error.

    Of 960 random layers, torch's own errors reach 2.1 times the default at single elements.
    """
    exact = product_tolerance(dtype)
    half = torch.finfo(dtype).bits <= 16
    return Tolerance(rtol=4 * exact.rtol, atol=4 * exact.atol, mean=MOST_MEAN) if half else exact


def _name(residual: bool, **sizes: Any) -> str:
    shape = "{kind}_B{sequences}_T{tokens}_KV{context}_D{hidden_dim}_H{heads}_{kv_heads}_I{intermediate_dim}"
    return shape.format(**sizes) + ("" if residual else "_first")


_workloads = partial(helpers.make_workloads, AXES, _name)

_PHASES = ((1, 2048, 2048), (1, 1, 1024), (32, 1, 1024))
_LLAMA, _QWEN = (4096, 32, 8, 128, 14336, 16), (4096, 32, 8, 128, 12288, 16)
"""Of Llama-3.1-8B and of Qwen3-8B."""
_DEFAULT = [("llama", True, *phase, *_LLAMA) for phase in _PHASES]
_DEFAULT += [("qwen3", True, *phase, *_QWEN) for phase in _PHASES]
_CPU_PHASES, _CPU, _SMOKE = ((1, 64, 64), (4, 1, 256)), (256, 8, 2, 32, 768, 16), (64, 4, 2, 16, 96, 8)
_SMALLER: dict[str, Any] = {
    "hidden_dim": 128,
    "intermediate_dim": 192,
    "heads": 8,
    "kv_heads": 2,
    "head_dim": 64,
}

OPERATOR = Operator(
    name="decoder_layer",
    title="Decoder Layers",
    axes=AXES,
    workload_sets={
        "default": _workloads("bfloat16", "", _DEFAULT),
        "cpu": _workloads("float32", "cpu_", [("llama", True, *batch, *_CPU) for batch in _CPU_PHASES]),
        "smoke": _workloads(
            "float32", "smoke_", (("llama", True, 1, 20, 20, *_SMOKE), ("qwen3", False, 3, 1, 20, *_SMOKE))
        ),
        **model_sets("decoder_layer", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=flops,
    outputs=(
        Output("hidden"),
        Output("residual"),
        Output(
            "kv_cache",
            shape=lambda inputs: inputs[2].shape,
            written=lambda inputs: 2 * len(inputs[0]) * size_in_bytes(inputs[2][0, 0, 0]),
        ),
    ),
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=cast(Callable[..., Any], reference),  # called with the workload's dtype
    smaller=partial(helpers.limit_axes, sequences=3, tokens=40, context=40, **_SMALLER),
    multiples=dict.fromkeys(AXES, 0)
    | {"sequences": 1},  # a prompt or a token of each; others are the model's
    partly_read=bytes_of_tokens,
    # Positions, slots and tables belong together: parts of them exchanged would be no batch.
    fixed=(3, 4, 5, 6),
    parameters=tuple(range(7, 8 + len(WEIGHTS))),
)
