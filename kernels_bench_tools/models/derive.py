"""Derive the tasks of models: run their modules on torch's ``meta`` device and note every call.

``python -m kernels_bench_tools.models.derive`` writes the files of ``derived/`` again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain, product
from math import prod
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.models.baseline.forward_context import plan_batch, set_forward_context
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model
from kernels_bench_tools.models.calls import Key, ModuleCall, describe, hooked, level_of, modules_of_levels
from kernels_bench_tools.models.config import config_keys, load_config, splitting_problems
from kernels_bench_tools.records.model import (
    RANKS,
    Called,
    ModelTask,
    ModelTasks,
    Phase,
    Sizes,
    derived_folder,
    phase_sizes,
)

PHASES = ("prefill-2048", "decode-1", "decode-32")
BLOCK_SIZE = 16
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def derive(model: str, ranks: int = 1) -> ModelTasks:
    """Return the tasks of a model that comes with this package, such as ``llama-3.1-8b``, or of the first of its ranks.

    Raises:
        ModelError: The model is not known, or cannot be split over this many ranks.
    """
    config = load_config(model)
    built = build_model(config, size=ranks)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    outputs: dict[Any, Any] = {}
    for module in built.modules():
        if level_of(module) == 1:
            module.forward = _computed_once(module, outputs)
    phases = [_phase(built, name, phase_sizes(name)) for name in PHASES]
    return ModelTasks(model=model, source=config.source, parameters=parameters, phases=phases)


def _computed_once(module: nn.Module, outputs: dict[Any, Any]) -> Callable[..., Any]:
    """Return ``forward`` of a kernel that takes the output of an equal call: on ``meta`` only shapes matter, and torch finds them slowly."""
    forward = module.forward
    own = type(module), *map(describe, module.parameters())

    @wraps(forward)
    def computed_once(*args: Any, **named: Any) -> Any:
        given = chain(args, *named.items())
        key = own, *(describe(value) if isinstance(value, Tensor) else value for value in given)
        if key not in outputs:
            outputs[key] = forward(*args, **named)
        return outputs[key]

    return computed_once


def _phase(model: CausalLM, name: str, sizes: Sizes) -> Phase:
    blocks = -(-sizes.context // BLOCK_SIZE)
    model.allocate_kv_cache(sizes.sequences * blocks, BLOCK_SIZE)
    tables = torch.zeros(sizes.sequences, blocks, dtype=torch.long, device="meta")
    new, lengths = [sizes.tokens] * sizes.sequences, [sizes.context] * sizes.sequences
    positions, batch = plan_batch(new, lengths, tables, BLOCK_SIZE)
    tasks: dict[Key, ModelTask] = {}
    paths = {module: _NUMBER.sub(".*", path) for path, module in model.named_modules()}

    def note(call: ModuleCall) -> None:
        level, kind, inputs = key = call.key
        if key not in tasks:
            found = [*_workloads(call, sizes)]
            tasks[key] = ModelTask(
                level=level, module=kind, inputs=[*inputs], calls=0, paths={}, workloads=found
            )
        task, where = tasks[key], paths[call.module]
        task.calls += 1
        task.paths[where] = task.paths.get(where, 0) + 1

    with torch.no_grad(), set_forward_context(batch), hooked(modules_of_levels(model, 1, 2, 3, 4), note):
        model.compute_logits(model(torch.zeros_like(positions), positions))
    found = sorted(tasks.values(), key=lambda task: (task.level, -task.calls, task.module, task.inputs))
    return Phase(
        name=name, sequences=sizes.sequences, tokens=sizes.tokens, context=sizes.context, tasks=found
    )


def _workloads(call: ModuleCall, sizes: Sizes) -> Iterator[Called]:
    """Yield what a call is as a workload of operators: attention that decodes is one of two."""
    module: Any = call.module
    shapes = {name: [*value.shape] for name, value in call.tensors.items()}
    kinds = [describe(value) for value in (*call.tensors.values(), *module.parameters())]
    dtype = next((kind.partition("[")[0] for kind in kinds if "float" in kind), "")

    def called(operator: str, group: str = "", /, **axes: Any) -> Called:
        return Called(operator=operator, group=group, dtype=dtype, axes=axes)

    x, weight = shapes.get("x", []), shapes.get("weight", [])
    batch = {"batch": sizes.sequences, "seq_len": sizes.tokens}
    match type(module).__name__:
        case "RMSNorm":
            # Heads that are normalized are rows of a token.
            axes = {"batch": prod(x[:-2]), "seq_len": x[-2], "hidden_dim": x[-1]}
            if "residual" in shapes:
                yield called("rms_norm", "RMSNorm with residual", function="add_rms_norm", **axes)
            else:
                yield called("rms_norm", "RMSNorm", function="rms_norm", **axes)
        case "SiluAndMul":
            yield called("activation", "SwiGLU", function="swiglu", tokens=x[0], hidden_dim=x[1] // 2)
        case "RotaryEmbedding":
            heads, kv_heads = (shapes[name][-1] // module.head_size for name in ("query", "key"))
            yield called("rotary", **batch, heads=heads, kv_heads=kv_heads, head_dim=module.head_size)
        case "FlashAttnPrefill" | "FlashAttnDecode" as kind:
            (sequences, heads, head_dim), (_, block_size, kv_heads, _) = shapes["query"], shapes["key_cache"]
            of_heads = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
            if kind == "FlashAttnDecode":
                paged = {"sequences": sequences, "context": sizes.context, **of_heads}
                yield called("paged_attention", **paged, block_size=block_size, even=True)
            causal = sizes.tokens == sizes.context  # a prefill
            yield called("flash_attn", **batch, kv_len=sizes.context, **of_heads, causal=causal)
        case "Embedding":
            tokens = shapes["input_ids"][0]
            yield called("embedding", tokens=tokens, vocabulary=weight[0], hidden_dim=weight[1])
        case "StoreKVCache":
            (tokens, kv_heads, head_dim), (blocks, block_size, *_) = shapes["key"], shapes["key_cache"]
            cache = {"kv_heads": kv_heads, "head_dim": head_dim, "blocks": blocks, "block_size": block_size}
            yield called("kv_store", tokens=tokens, sequences=sizes.sequences, **cache)
        case "Linear":
            axes = {"tokens": x[0], "in_features": x[1], "out_features": weight[0]}
            if "bias" in shapes:
                yield called("matmul", "Linear with bias", function="linear_bias", **axes)
            else:
                yield called("matmul", "Linear", function="linear", **axes)
        case "MoEGroupedGemm":
            experts, features, columns = weight
            sizes_of = {"rows": x[0], "experts": experts, "in_features": columns, "out_features": features}
            yield called("grouped_gemm", **sizes_of, skewed=False)
        case "LlamaMLP":
            inside = module.down_proj.weight.shape[1]
            yield called("mlp", tokens=x[0], hidden_dim=x[1], intermediate_dim=inside)
        case "FusedMoE":
            (tokens, columns), (_, experts) = shapes["hidden_states"], shapes["router_logits"]
            chosen = {"tokens": tokens, "experts": experts, "top_k": module.top_k}
            inside = module.w2_weight.shape[-1]
            yield called("moe", **chosen, hidden_dim=columns, intermediate_dim=inside)
        case "LlamaDecoderLayer":
            axes = _sizes_of_layer(module, sizes)
            yield called("decoder_layer", kind=axes.pop("kind"), residual="residual" in shapes, **axes)
        case "LlamaForCausalLM":
            layers, vocabulary = module.model.layers, len(module.lm_head.weight)
            axes = _sizes_of_layer(layers[0], sizes)
            yield called("causal_lm", **axes, layers=len(layers), vocabulary=vocabulary)


def _sizes_of_layer(layer: Any, sizes: Sizes) -> dict[str, Any]:
    attention = layer.self_attn
    return {
        "kind": "qwen3" if attention.q_norm else "llama" if attention.qkv_proj.bias is None else "qwen2",
        "sequences": sizes.sequences,
        "tokens": sizes.tokens,
        "context": sizes.context,
        "hidden_dim": len(attention.o_proj.weight),
        "heads": attention.num_heads,
        "kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "intermediate_dim": layer.mlp.down_proj.weight.shape[1],
        "block_size": BLOCK_SIZE,
    }


def write_all() -> None:
    """Write the tasks of all models, for each number of ranks that a model can be split over."""
    for key, ranks in product(config_keys(), RANKS):
        if not splitting_problems(load_config(key), ranks):
            folder = derived_folder(ranks)
            folder.mkdir(exist_ok=True)
            tasks = msgspec.json.encode(derive(key, ranks))
            lines = re.sub(rb'(?=\{"(?:name|level)":)', b"\n", tasks)  # one for each phase and task
            write_atomically(folder / f"{key}.json", lines + b"\n")


if __name__ == "__main__":
    write_all()
