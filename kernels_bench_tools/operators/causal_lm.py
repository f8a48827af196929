"""A whole model of Llama, Qwen2 or Qwen3 with a paged cache: the forward pass from tokens to logits, as a function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

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
    size_in_bytes,
)
from kernels_bench_tools.models.baseline.forward_context import set_forward_context
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model
from kernels_bench_tools.models.config import ModelConfig
from kernels_bench_tools.operators.decoder_layer import (
    Kernels,
    attended_pairs,
    batch_of,
    chunks,
    large_after_the_end,
    model_config,
    random_batch,
    random_cos_sin,
    set_kernels,
)
from kernels_bench_tools.operators.mlp import MOST_MEAN

AXES = (
    *("kind", "layers", "sequences", "tokens", "context", "hidden_dim"),
    *("heads", "kv_heads", "head_dim", "intermediate_dim", "vocabulary", "block_size"),
)
NORM_STD = 0.3
"""How much weights of norms vary: a kernel without them is wrong by more than rounding in any layer."""
POSITIONS = 2048
CACHE_AT_ONCE = 1 << 27
"""Elements of the cache that the reference reads at a time: 1 GB in float64."""

Model = Callable[..., tuple[Tensor, Tensor]]


def model_with(kernels: Kernels | None = None) -> Model:
    """Return the pass as a function of the operator's inputs, which writes new keys and values into the cache."""
    made: WeakKeyDictionary[CausalLM, CausalLM] = WeakKeyDictionary()

    def forward(
        kv_cache: Tensor,
        input_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        model: CausalLM,
        context: int,
    ) -> tuple[Tensor, Tensor]:
        if model not in made:
            tensors = (*model.parameters(), *model.buffers())
            made[model] = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
            set_kernels(made[model], kernels or {})
        own = made[model]
        for layer, cache in zip(own.model.layers, kv_cache, strict=True):
            layer.self_attn.kv_cache = cache
        with set_forward_context(batch_of(slots, block_tables, seq_lens, context)):
            logits = own.compute_logits(own(input_ids, positions))
        for layer in own.model.layers:
            layer.self_attn.kv_cache = None  # so that its memory can be freed
        return logits, kv_cache

    return forward


def reference(
    kv_cache: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    model: CausalLM,
    context: int,
) -> tuple[Tensor, Tensor]:
    """Return the logits of all new tokens (tokens, vocabulary), and the new cache; computes in the cache's type.

    ``kv_cache`` is (layers, 2, blocks, block_size, kv_heads, head_dim) and stays as it is. ``input_ids``, ``positions``
    and ``slots`` are (tokens,), ``block_tables`` (sequences, blocks of each) and ``seq_lens`` (sequences,). ``context``
    is the tokens of each sequence, with the new ones.
    """
    new_cache = kv_cache.clone()

    def call(module: nn.Module, *given: Any) -> Any:
        # One module after the other: a whole model in float64 would need four times its memory.
        named = dict([*module.named_parameters(), *module.named_buffers()])
        return functional_call(
            module, {name: value.to(kv_cache.dtype) for name, value in named.items()}, given
        )

    with set_forward_context(batch_of(slots, block_tables, seq_lens, context)):
        hidden, residual = model.model.embed_tokens(input_ids).to(kv_cache.dtype), None
        for layer, cache in zip(model.model.layers, new_cache, strict=True):
            layer.self_attn.kv_cache = cache
            hidden, residual = call(layer, positions, hidden, residual)
            layer.self_attn.kv_cache = None
        hidden, _ = call(model.model.norm, hidden, residual)
        return call(model.lm_head, hidden), new_cache


@lru_cache(maxsize=2)
def random_model(device: str, config: ModelConfig) -> CausalLM:
    """Return a model with random weights, the same in every process; two are kept, such as one and its smaller version.

    Products have a variance of 1, and so have logits.
    """
    model = build_model(config, device).eval().requires_grad_(False)
    generator = torch.Generator(device).manual_seed(0)
    for name, weight in model.named_parameters():
        weight.normal_(generator=generator)
        if "norm" in name:
            weight.mul_(NORM_STD).add_(1)
        elif weight.dim() > 1 and "embed_tokens" not in name:
            weight.mul_(weight.shape[1] ** -0.5)
    rotary = model.model.layers[0].self_attn.rotary_emb  # shared by all layers
    rotary.cos_sin_cache.copy_(random_cos_sin(config.max_position_embeddings, config.head_dim, generator))
    return model


def make_inputs(workload: Workload, device: str | torch.device, seed: int) -> Inputs:
    """Return a random cache, tokens, what belongs to the batch, and a model, whose weights do not depend on the seed.

    Each sequence has ``context`` tokens, the last ``tokens`` of which are new.
    """
    axes: Mapping[str, Any] = workload.axes
    kind, layers, sequences, tokens, context, hidden, heads, kv_heads, head_dim, inside, vocabulary, size = (
        axes[axis] for axis in AXES
    )
    shape = (layers, 2, sequences * -(-context // size), size, kv_heads, head_dim)
    (kv_cache,) = helpers.random_tensors((shape,), workload.torch_dtype, device, seed)
    generator = torch.Generator().manual_seed(seed)
    batch = random_batch(sequences, tokens, context, size, generator)
    input_ids = torch.randint(vocabulary, (sequences * tokens,), generator=generator)
    config = model_config(
        *(kind, hidden, heads, kv_heads, head_dim, inside),
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        max_position_embeddings=max(context, POSITIONS),
        dtype=workload.dtype,
    )
    model = random_model(str(kv_cache.device), config)
    return kv_cache, *(value.to(device) for value in (input_ids, *batch)), model, context


def edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    kv_cache, input_ids, positions, slots, tables, *rest = inputs
    ends = torch.zeros_like(input_ids)
    ends[::2] = int(workload.axes["vocabulary"]) - 1
    yield "the first and the last token", (kv_cache, ends, positions, slots, tables, *rest)
    beyond = large_after_the_end(kv_cache, tables, rest[-1])
    yield "large values after the end", (beyond, input_ids, positions, slots, tables, *rest)
    yield from chunks(workload, make_inputs, kv_cache.device)


def slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield slices of sequences, as far as their keys and values fit into the memory that a reference may need."""
    kv_cache, input_ids, positions, slots, tables, seq_lens, model, context = inputs
    size, new = kv_cache.shape[3], len(input_ids) // len(tables)
    number = torch.empty(kv_cache.shape[2], dtype=slots.dtype, device=slots.device)
    for some in helpers.parts(len(tables), kv_cache.numel() // len(tables), CACHE_AT_ONCE):
        blocks, rows = tables[some].flatten(), slice(some.start * new, some.stop * new)
        number[blocks] = torch.arange(len(blocks), device=number.device)
        own_slots = number[slots[rows] // size] * size + slots[rows] % size
        tokens, batch = (input_ids[rows], positions[rows]), (number[tables[some]], seq_lens[some])
        own = (kv_cache[:, :, blocks], *tokens, own_slots, *batch, model, context)
        yield [rows, (slice(None), slice(None), blocks)], own


def flops(inputs: Inputs) -> int:
    """Count the products with weights, and two multiply-adds per pair of query and key and element of a head."""
    _, input_ids, _, _, _, seq_lens, model, context = inputs
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
    matrices -= model.model.embed_tokens.weight.numel()
    columns = sum(layer.self_attn.o_proj.weight.shape[1] for layer in model.model.layers)
    pairs = attended_pairs(len(input_ids), len(seq_lens), context)
    return 2 * len(input_ids) * matrices + 4 * pairs * columns


def bytes_read(inputs: Inputs) -> dict[int, int]:
    """Return the bytes of the earlier tokens' keys and values, and of the weights, of the embedding those of tokens."""
    kv_cache, input_ids, _, _, _, seq_lens, model, context = inputs
    new = len(input_ids)
    earlier = len(seq_lens) * context - new
    embedding, rotary = model.model.embed_tokens.weight, model.model.layers[0].self_attn.rotary_emb
    weights = sum(map(size_in_bytes, model.parameters())) - size_in_bytes(embedding)
    rows = new * size_in_bytes(embedding[0]) + new // len(seq_lens) * size_in_bytes(rotary.cos_sin_cache[0])
    return {0: earlier * _bytes_of_token(kv_cache), 6: weights + rows}


def _bytes_of_token(kv_cache: Tensor) -> int:
    return size_in_bytes(kv_cache[:, :, 0, 0])


def tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance for logits, keys and values, whose variance is 1.

    Rounding in each layer adds up: 99.9 % of torch's own errors are below 14 eps in half precision and 51 eps in
    float32, after 32 layers. Rounding of all weights to 8 bits is not much more, but doubles the mean error.
    """
    eps = torch.finfo(dtype).eps
    half = torch.finfo(dtype).bits <= 16
    return Tolerance(rtol=0.0, atol=24 * eps, mean=MOST_MEAN) if half else Tolerance(rtol=0.0, atol=128 * eps)


_name = (
    "{kind}_B{sequences}_T{tokens}_KV{context}_L{layers}_D{hidden_dim}_H{heads}_{kv_heads}_"
    "I{intermediate_dim}_V{vocabulary}"
).format
_workloads = partial(helpers.make_workloads, AXES, _name)
_CPU, _SMOKE = (256, 8, 2, 32, 768, 2048, 16), (64, 4, 2, 16, 96, 256, 8)

OPERATOR = Operator(
    name="causal_lm",
    title="Causal Language Models",
    axes=AXES,
    workload_sets={
        "default": [
            replace(one, name="_".join(one.name.split("_")[:2]))  # model and phase
            for model in ("llama-3.2-1b", "llama-3.1-8b")
            for one in model_sets("causal_lm", AXES, _name)[model]
        ],
        "cpu": _workloads(
            "float32", "cpu_", [("llama", 4, *batch, *_CPU) for batch in ((1, 64, 64), (4, 1, 256))]
        ),
        "smoke": _workloads(
            "float32", "smoke_", (("llama", 2, 1, 20, 20, *_SMOKE), ("qwen3", 2, 3, 1, 20, *_SMOKE))
        ),
        **model_sets("causal_lm", AXES, _name),
    },
    inputs=make_inputs,
    reference=reference,
    flops=flops,
    outputs=(
        Output("logits", shape=lambda inputs: (len(inputs[1]), inputs[6].lm_head.own_rows)),
        Output("kv_cache", written=lambda inputs: len(inputs[1]) * _bytes_of_token(inputs[0])),
    ),
    slices=slices,
    edge_cases=edge_cases,
    tolerance=tolerance,
    baseline=reference,  # called with the workload's dtype
    # As wide as the model, so that kernels take the same path.
    smaller=partial(helpers.limit_axes, layers=2, sequences=3, tokens=40, context=40),
    multiples=dict.fromkeys(AXES, 0),  # its weights would be made again on a CPU
    partly_read=bytes_read,
    # Positions, slots and tables belong together: parts of them exchanged would be no batch.
    fixed=(2, 3, 4, 5),
    parameters=(6,),
)
