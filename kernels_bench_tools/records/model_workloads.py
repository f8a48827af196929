"""The workloads of operators that the kernels and blocks of a model are, found without torch.

The operators' own modules make their workload sets of models of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from kernels_bench_tools.records.model import ModelTask, Phase
from kernels_bench_tools.records.summary import WorkloadSummary

REPLACEABLE = (
    *("RMSNorm", "SiluAndMul", "RotaryEmbedding", "FlashAttnPrefill", "FlashAttnDecode"),
    *("MoEGroupedGemm", "Linear", "Embedding"),
)
"""Classes of level 1 that ``kbt effect`` replaces; a test compares them with ``models.replacement``."""

_Axes = dict[str, Any]


class Kernel(NamedTuple):
    """What a module of level 1 computes, or a block, layer or model of a higher level."""

    operator: str
    argument: str
    """The argument of the module whose type is that of the workload; empty for that of the embedding."""
    axes: Callable[[Phase, Mapping[str, tuple[int, ...]]], tuple[str, _Axes]]
    """Return the group and the axes, given the shapes of the module's arguments."""


def operator_of_module(module: str) -> str:
    return _KERNELS[module].operator if module in _KERNELS else ""


def called_workload(phase: Phase, task: ModelTask) -> WorkloadSummary | None:
    """Return what a task is as a workload of its operator, without a name; None if there is no operator."""
    if task.module not in _KERNELS:
        return None
    return _workload(_KERNELS[task.module], phase, task)


def operator_calls(operator: str, phase: Phase) -> list[WorkloadSummary]:
    """Return the calls that an operator computes, as workloads without names; for flash_attn also those that decode."""
    also = {"FlashAttnDecode": _ATTENTION} if operator == _ATTENTION.operator else {}
    found = ((task, also.get(task.module) or _KERNELS.get(task.module)) for task in phase.tasks)
    return [
        _workload(kernel, phase, task) for task, kernel in found if kernel and kernel.operator == operator
    ]


def _workload(kernel: Kernel, phase: Phase, task: ModelTask) -> WorkloadSummary:
    group, axes = kernel.axes(phase, task.shapes)
    typed = task if kernel.argument else phase.kernels("Embedding")[0]
    return WorkloadSummary(name="", dtype=typed.dtype(kernel.argument or "weight"), group=group, axes=axes)


def blocks_of(phase: Phase) -> list[ModelTask]:
    """Return the tasks of levels 2 to 4 that an operator computes; their time contains that of kernels."""
    return [task for task in phase.tasks if task.level > 1 and task.module in _KERNELS]


def axes_of(workload: WorkloadSummary) -> dict[str, Any]:
    """Return the axes and the dtype; also ``rows``, batch times sequence length, except for attention."""
    axes = dict(workload.axes)
    batch, seq_len = axes.get("batch"), axes.get("seq_len")
    if isinstance(batch, int) and isinstance(seq_len, int) and "kv_len" not in axes:
        axes["rows"] = batch * seq_len
    return {**axes, "dtype": workload.dtype}


def compared_axes(workload: WorkloadSummary) -> dict[str, Any]:
    """Return the axes in which a model's kernel is compared with a workload: ``rows`` instead of batch and length."""
    axes = axes_of(workload)
    return {
        name: value for name, value in axes.items() if "rows" not in axes or name not in {"batch", "seq_len"}
    }


def _rms_norm(_: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    *rows, columns = shapes["x"]
    added = "residual" in shapes
    batch = prod(rows[:-1])  # heads that are normalized are rows of a token
    sizes = {"batch": batch, "seq_len": rows[-1], "hidden_dim": columns}
    group = "RMSNorm with residual" if added else "RMSNorm"
    return group, {"function": "add_rms_norm" if added else "rms_norm", **sizes}


def _swiglu(_: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    tokens, columns = shapes["x"]
    return "SwiGLU", {"function": "swiglu", "tokens": tokens, "hidden_dim": columns // 2}


def _linear(_: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    (tokens, columns), biased = shapes["x"], "bias" in shapes
    sizes = {"tokens": tokens, "in_features": columns, "out_features": shapes["weight"][0]}
    group = "Linear with bias" if biased else "Linear"
    return group, {"function": "linear_bias" if biased else "linear", **sizes}


def _grouped(_: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    experts, features, columns = shapes["weight"]
    sizes = {"rows": shapes["x"][0], "experts": experts, "in_features": columns, "out_features": features}
    return "", {**sizes, "skewed": False}


def _rotary(phase: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    attention = [*phase.kernels("FlashAttnPrefill"), *phase.kernels("FlashAttnDecode")]
    head_dim = attention[0].shapes["query"][-1]
    heads, kv_heads = (shapes[name][-1] // head_dim for name in ("query", "key"))
    batch = {"batch": phase.sequences, "seq_len": phase.tokens}
    return "", {**batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _attention(phase: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    _, heads, head_dim = shapes["query"]
    batch = {"batch": phase.sequences, "seq_len": phase.tokens, "kv_len": phase.context}
    sizes = {"heads": heads, "kv_heads": shapes["key_cache"][-2], "head_dim": head_dim}
    return "", {**batch, **sizes, "causal": phase.tokens == phase.context}  # a prefill


def _paged(phase: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    (sequences, heads, head_dim), (_, block_size, kv_heads, _) = shapes["query"], shapes["key_cache"]
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
    return "", {"sequences": sequences, "context": phase.context, **sizes, "even": True}


def _embedding(_: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    vocabulary, columns = shapes["weight"]
    return "", {"tokens": shapes["input_ids"][0], "vocabulary": vocabulary, "hidden_dim": columns}


def _store(phase: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    (tokens, kv_heads, head_dim), (blocks, block_size, *_) = shapes["key"], shapes["key_cache"]
    sizes = {"kv_heads": kv_heads, "head_dim": head_dim, "blocks": blocks, "block_size": block_size}
    return "", {"tokens": tokens, "sequences": phase.sequences, **sizes}


def _mlp(phase: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    tokens, columns = shapes["x"]
    inside = phase.kernels("SiluAndMul")[0].shapes["x"]
    return "", {"tokens": tokens, "hidden_dim": columns, "intermediate_dim": inside[1] // 2}


def _layer(phase: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    _, block_size, kv_heads, head_dim = phase.kernels("StoreKVCache")[0].shapes["key_cache"]
    heads = phase.kernels("RotaryEmbedding")[0].shapes["query"][1] // head_dim
    biased = any("bias" in task.shapes for task in phase.kernels("Linear"))
    normalized = any(path.endswith("q_norm") for task in phase.kernels("RMSNorm") for path in task.paths)
    kind = "qwen3" if normalized else "qwen2" if biased else "llama"
    return "", {
        "kind": kind,
        "residual": "residual" in shapes,
        "sequences": phase.sequences,
        "tokens": phase.tokens,
        "context": phase.context,
        "hidden_dim": shapes["hidden_states"][1],
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_dim": phase.kernels("SiluAndMul")[0].shapes["x"][1] // 2,
        "block_size": block_size,
    }


def _whole_model(phase: Phase, _: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    layers = phase.kernels("LlamaDecoderLayer")
    group, axes = _layer(phase, layers[0].shapes)
    del axes["residual"]
    vocabulary = phase.kernels("Embedding")[0].shapes["weight"][0]
    return group, {**axes, "layers": sum(task.calls for task in layers), "vocabulary": vocabulary}


def _moe(phase: Phase, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, _Axes]:
    (tokens, columns), experts = shapes["hidden_states"], shapes["router_logits"][1]
    rows, inside = phase.kernels("SiluAndMul")[0].shapes["x"]
    sizes = {"tokens": tokens, "experts": experts, "top_k": rows // tokens}
    return "", {**sizes, "hidden_dim": columns, "intermediate_dim": inside // 2}


_ATTENTION = Kernel("flash_attn", "query", _attention)
_KERNELS = {
    "RMSNorm": Kernel("rms_norm", "x", _rms_norm),
    "SiluAndMul": Kernel("activation", "x", _swiglu),
    "RotaryEmbedding": Kernel("rotary", "query", _rotary),
    "FlashAttnPrefill": _ATTENTION,
    "FlashAttnDecode": Kernel("paged_attention", "query", _paged),
    "Embedding": Kernel("embedding", "weight", _embedding),
    "StoreKVCache": Kernel("kv_store", "key", _store),
    "Linear": Kernel("matmul", "x", _linear),
    "MoEGroupedGemm": Kernel("grouped_gemm", "x", _grouped),
    "LlamaMLP": Kernel("mlp", "x", _mlp),
    "FusedMoE": Kernel("moe", "hidden_states", _moe),
    "LlamaDecoderLayer": Kernel("decoder_layer", "hidden_states", _layer),
    "LlamaForCausalLM": Kernel("causal_lm", "", _whole_model),
}
REPLACEABLE_OPERATORS = {_KERNELS[name].operator for name in (*REPLACEABLE, "LlamaMLP", "FusedMoE")}
"""Operators whose implementations ``kbt effect`` can measure in a model."""
OPERATORS = {kernel.operator for kernel in _KERNELS.values()}
"""The operators of this package that compute a kernel, a block or the whole of a model."""
