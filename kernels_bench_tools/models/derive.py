"""Derive the tasks of models: run their modules on torch's ``meta`` device and note every call.

``python -m kernels_bench_tools.models.derive`` writes the files of ``derived/`` again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from inspect import signature
from itertools import chain, product
from math import prod
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.hub.kernel import use_in_transformers
from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.models.baseline.forward_context import BLOCK_SIZE, plan_batch, set_forward_context
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model
from kernels_bench_tools.models.calls import Key, ModuleCall, describe, hooked, level_of, modules_of_levels
from kernels_bench_tools.models.changed_model import kernel_layers
from kernels_bench_tools.models.config import load_config, splitting_problems
from kernels_bench_tools.models.forward_pass import cache_after, transformers_model
from kernels_bench_tools.models.replacement import ADAPTERS, Caller, Replacement
from kernels_bench_tools.operators import activation, matmul, rms_norm
from kernels_bench_tools.records.model import (
    CONFIGS,
    RANKS,
    CalledWorkload,
    ModelTask,
    ModelTasks,
    Phase,
    Sizes,
    derived_folder,
    find_model,
    model_files,
    phase_sizes,
)
from kernels_bench_tools.records.request import TRANSFORMERS, EffectRequest

PHASES = ("prefill-2048", "decode-1", "decode-32")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def derive(model: str, ranks: int = 1) -> ModelTasks:
    """Return the tasks of a model that comes with this package, such as ``llama-3.1-8b``, or of the first of its ranks.

    Raises:
        ModelError: The model is not known, or cannot be split over this many ranks.
    """
    path = find_model(CONFIGS, model)
    if path.parent != CONFIGS:
        return _of_transformers(model, msgspec.json.decode(path.read_bytes()))
    config = load_config(model)
    built = build_model(config, size=ranks)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    outputs: dict[Any, Any] = {}
    for module in built.modules():
        if level_of(module) == 1:
            own = type(module), *map(describe, module.parameters())
            module.forward = _computed_once(module.forward, own, outputs)
    phases = [_phase(built, name) for name in PHASES]
    return ModelTasks(model=model, source=config.source, parameters=parameters, phases=phases)


def _of_transformers(model: str, config: dict[str, Any]) -> ModelTasks:
    """Return the tasks of a model of which only transformers has modules, with torch's implementations of our operators in it."""
    from transformers.integrations.hub_kernels import get_kernel_mapping_transformers

    request = EffectRequest(model=model, config=config, phases=[], framework=TRANSFORMERS)
    built = transformers_model(request, "meta")
    use_in_transformers()  # before it makes its table, which stays
    table = get_kernel_mapping_transformers()
    kernels = {
        name: {
            str(device): sorted(str(mode).removeprefix("Mode.").lower() for mode in modes)
            for device, modes in table.get(name, {}).items()
        }
        for name in kernel_layers(built).values()
    }
    return ModelTasks(
        model=model,
        source=config["source"],
        parameters=sum(parameter.numel() for parameter in built.parameters()),
        phases=[_phase_of_transformers(built, name) for name in PHASES],
        kernels=kernels,
    )


def _phase_of_transformers(model: Any, name: str) -> Phase:
    sizes = phase_sizes(name)
    tasks, replacement = _Tasks(model, sizes), Replacement({}, {})
    outputs: dict[Any, Any] = {}
    for operator, adapters in ADAPTERS.items():
        for adapter, (path, module) in product(adapters, model.named_modules()):
            if isinstance(adapter.module, str) and adapter.fits(module):
                # Of two tensors: their products are modules, and noted, too.
                layout = "two_tensors" if "two_tensors" in adapter.layouts else adapter.layouts[0]
                form = find_operator(operator).adapted(layout=layout)
                form = form.for_workload(form.workload_sets["smoke"][0])
                call = Caller(form, _noting(tasks, form, module, outputs), layout=layout)
                replacement.add(path, module, adapter, call)
    kernels = {module for module in replacement.instances.values() if level_of(module) == 1}
    products = {module for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)}

    def note(call: ModuleCall) -> None:
        module: Any = call.module
        tensors = call.tensors
        if module in products:  # which are the same with and without a batch
            tensors = {name: one.flatten(0, -2) for name, one in tensors.items()} | {"weight": module.weight}
        tasks.note(type(module).__name__, tensors, module)

    ids = partial(torch.zeros, dtype=torch.long, device="meta")
    blocks = {*modules_of_levels(model, 1, 2, 3)} - kernels
    with torch.no_grad(), replacement.active():
        before = sizes.context - sizes.tokens
        cache = cache_after(model, ids(sizes.sequences, before)) if before else {}
        tasks.found.clear()
        with hooked(products | blocks, note):
            model(input_ids=ids(sizes.sequences, sizes.tokens), use_cache=True, **cache)
    return tasks.phase(name)


def _noting(tasks: _Tasks, form: Operator, module: nn.Module, outputs: dict[Any, Any]) -> Callable[..., Any]:
    """Return torch's implementation of an operator, which notes each call of it by a module."""
    names = signature(form.reference).parameters
    baseline = _computed_once(form.baseline or form.reference, (form.name,), outputs)

    def call(*inputs: Any) -> Any:
        given = {name: one for name, one in zip(names, inputs, strict=False) if isinstance(one, Tensor)}
        tasks.note(f"{type(module).__name__}: {form.name}", given, module, level=1)
        return baseline(*inputs)

    return call


class _Tasks:
    """Tasks of a phase, from the calls of modules."""

    def __init__(self, model: nn.Module, sizes: Sizes) -> None:
        self.found: dict[Key, ModelTask] = {}
        self._sizes = sizes
        self._paths = {module: _NUMBER.sub(".*", path) for path, module in model.named_modules()}

    def note(self, kind: str, tensors: Mapping[str, Tensor], module: nn.Module, level: int = 0) -> None:
        """Note a call of a class, or as ``class: operator`` of what a module of it computes inside."""
        inputs = tuple(f"{name} {describe(value)}" for name, value in tensors.items())
        key = level or level_of(module) or 1, kind, inputs
        if key not in self.found:
            found = [*_workloads(kind.rpartition(": ")[2], tensors, module, self._sizes)]
            self.found[key] = ModelTask(
                level=key[0], module=kind, inputs=[*inputs], calls=0, paths={}, workloads=found
            )
        task, where = self.found[key], self._paths[module]
        task.calls += 1
        task.paths[where] = task.paths.get(where, 0) + 1

    def phase(self, name: str) -> Phase:
        tasks = sorted(
            self.found.values(), key=lambda task: (task.level, -task.calls, task.module, task.inputs)
        )
        sizes = self._sizes
        return Phase(
            name=name, sequences=sizes.sequences, tokens=sizes.tokens, context=sizes.context, tasks=tasks
        )


def _computed_once(
    forward: Callable[..., Any], own: tuple[Any, ...], outputs: dict[Any, Any]
) -> Callable[..., Any]:
    """Return a kernel that takes the output of an equal call: on ``meta`` only shapes matter, and torch finds them slowly."""

    @wraps(forward)
    def computed_once(*args: Any, **named: Any) -> Any:
        given = chain(args, *named.items())
        key = own, *(describe(value) if isinstance(value, Tensor) else value for value in given)
        if key not in outputs:
            outputs[key] = forward(*args, **named)
        return outputs[key]

    return computed_once


def _phase(model: CausalLM, name: str) -> Phase:
    sizes = phase_sizes(name)
    blocks = -(-sizes.context // BLOCK_SIZE)
    model.allocate_kv_cache(sizes.sequences * blocks, BLOCK_SIZE)
    tables = torch.zeros(sizes.sequences, blocks, dtype=torch.long, device="meta")
    new, lengths = [sizes.tokens] * sizes.sequences, [sizes.context] * sizes.sequences
    positions, batch = plan_batch(new, lengths, tables, BLOCK_SIZE)
    tasks = _Tasks(model, sizes)

    def note(call: ModuleCall) -> None:
        tasks.note(type(call.module).__name__, call.tensors, call.module)

    with torch.no_grad(), set_forward_context(batch), hooked(modules_of_levels(model, 1, 2, 3, 4), note):
        model.compute_logits(model(torch.zeros_like(positions), positions))
    return tasks.phase(name)


def _workloads(
    kind: str, tensors: Mapping[str, Tensor], module: Any, sizes: Sizes
) -> Iterator[CalledWorkload]:
    """Yield what a call is as a workload of operators: attention that decodes is one of two."""
    shapes = {name: [*value.shape] for name, value in tensors.items()}
    kinds = [describe(value) for value in (*tensors.values(), *module.parameters())]
    dtype = next((kind.partition("[")[0] for kind in kinds if "float" in kind), "")

    def called(operator: str, group: str = "", /, **axes: Any) -> CalledWorkload:
        return CalledWorkload(operator=operator, group=group, dtype=dtype, axes=axes)

    x, weight = shapes.get("x") or shapes.get("input", []), shapes.get("weight", [])
    q, k = shapes.get("q", []), shapes.get("k", [])
    batch = {"batch": sizes.sequences, "seq_len": sizes.tokens}
    dtypes = {tensor.dtype for tensor in tensors.values()}
    function, group = ("step", "Step") if "state" in shapes else ("prefill", "Prefill")
    match kind:
        # Of other weights, or with a gate, it is no workload of the operator without a layout.
        case "RMSNorm" | "rms_norm" if "gate" not in shapes and len(dtypes) == 1:
            # Heads that are normalized are rows of a token.
            axes = {"batch": prod(x[:-2]), "seq_len": x[-2], "hidden_dim": x[-1]}
            function = "add_rms_norm" if "residual" in shapes else "rms_norm"
            yield called("rms_norm", rms_norm.GROUPS[function], function=function, **axes)
        case "SiluAndMul" | "activation":
            *rows, columns = shapes.get("up") or (*x[:-1], x[-1] // 2)
            axes = {"tokens": prod(rows), "hidden_dim": columns}
            yield called("activation", activation.GROUPS["swiglu"], function="swiglu", **axes)
        case "flash_attn":
            axes = {"kv_len": k[1], "heads": q[2], "kv_heads": k[2], "head_dim": q[3]}
            yield called("flash_attn", **batch, **axes, causal=sizes.tokens > 1)
        case "causal_conv1d":
            axes = {"batch": x[0], "dim": x[1], "seq_len": x[2], "width": weight[1]}
            yield called("causal_conv1d", **axes, activation="silu")
        case "selective_scan":
            axes = {"batch": x[0], "dim": x[1], "seq_len": x[2], "d_state": shapes["A"][1]}
            yield called("selective_scan", group, function=function, **axes)
        case "gated_delta_rule":
            axes = {"batch": q[0], "seq_len": q[1], "heads": q[2], "key_dim": q[3]}
            yield called("gated_delta_rule", group, function=function, **axes, value_dim=shapes["v"][3])
        case "RotaryEmbedding":
            heads, kv_heads = (shapes[name][-1] // module.head_size for name in ("query", "key"))
            yield called("rotary", **batch, heads=heads, kv_heads=kv_heads, head_dim=module.head_size)
        case "FlashAttnPrefill" | "FlashAttnDecode":
            (sequences, heads, head_dim), (_, block_size, kv_heads, _) = shapes["query"], shapes["key_cache"]
            of_heads = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
            if kind == "FlashAttnDecode":
                paged = {"sequences": sequences, "context": sizes.context, **of_heads}
                yield called("paged_attention", **paged, block_size=block_size, even=True)
            causal = sizes.tokens == sizes.context  # a prefill
            yield called("flash_attn", **batch, kv_len=sizes.context, **of_heads, causal=causal)
        case "Embedding":
            tokens = prod(shapes.get("input_ids", x))
            yield called("embedding", tokens=tokens, vocabulary=weight[0], hidden_dim=weight[1])
        case "StoreKVCache":
            (tokens, kv_heads, head_dim), (blocks, block_size, *_) = shapes["key"], shapes["key_cache"]
            cache = {"kv_heads": kv_heads, "head_dim": head_dim, "blocks": blocks, "block_size": block_size}
            yield called("kv_store", tokens=tokens, sequences=sizes.sequences, **cache)
        case "Linear":
            axes = {"tokens": x[0], "in_features": x[1], "out_features": weight[0]}
            function = "linear_bias" if "bias" in shapes else "linear"
            yield called("matmul", matmul.GROUPS[function], function=function, **axes)
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
    for (key, path), ranks in product(model_files(CONFIGS).items(), RANKS):
        ours = path.parent == CONFIGS
        if ranks == 1 or (ours and not splitting_problems(load_config(key), ranks)):
            folder = derived_folder(ranks) / path.parent.relative_to(CONFIGS)
            folder.mkdir(exist_ok=True)
            tasks = msgspec.json.encode(derive(key, ranks))
            lines = re.sub(rb'(?=\{"(?:name|level)":)', b"\n", tasks)  # one for each phase and task
            write_atomically(folder / f"{key}.json", lines + b"\n")


if __name__ == "__main__":
    write_all()
