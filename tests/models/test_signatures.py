"""Modules have vLLM's names and order of arguments; where one of vLLM's is missing, the later ones need their name."""

import inspect

import pytest

from kernels_bench_tools.models.baseline import L1, L2, L3, L4
from kernels_bench_tools.results.models import imports_of_models

FORWARD = {
    "x": "QKVParallelLinear RowParallelLinear MergedColumnParallelLinear SiluAndMul LlamaMLP",
    "x residual": "RMSNorm",
    "input_ids": "VocabParallelEmbedding",
    "hidden_states": "ParallelLMHead MixtralMoE",
    "positions hidden_states": "LlamaAttention",
    "positions hidden_states residual": "LlamaDecoderLayer MixtralDecoderLayer",
    "input_ids positions": "LlamaForCausalLM MixtralForCausalLM",
}

# The arguments of vLLM's classes, read in its repository (model_executor/layers and models/llama.py).
VLLM = {
    "RMSNorm": "hidden_size eps var_hidden_size has_weight dtype",
    "RotaryEmbedding": "head_size rotary_dim max_position_embeddings base is_neox_style dtype",
    "ReplicatedLinear": "input_size output_size bias skip_bias_add params_dtype quant_config prefix",
    "ColumnParallelLinear": "input_size output_size bias gather_output skip_bias_add params_dtype quant_config",
    "MergedColumnParallelLinear": "input_size output_sizes bias gather_output skip_bias_add params_dtype",
    "QKVParallelLinear": "hidden_size head_size total_num_heads total_num_kv_heads bias skip_bias_add params_dtype",
    "RowParallelLinear": "input_size output_size bias input_is_parallel skip_bias_add params_dtype reduce_results",
    "VocabParallelEmbedding": "num_embeddings embedding_dim params_dtype org_num_embeddings padding_size",
    "ParallelLMHead": "num_embeddings embedding_dim bias params_dtype org_num_embeddings padding_size",
    "LlamaAttention": "config hidden_size num_heads num_kv_heads max_position_embeddings quant_config bias",
    "LlamaMLP": "hidden_size intermediate_size hidden_act quant_config bias prefix reduce_results",
    "FusedMoE": "num_experts top_k hidden_size intermediate_size params_dtype reduce_results renormalize",
    "MixtralMoE": "num_experts top_k hidden_size intermediate_size params_dtype quant_config",
}
OURS = {
    "RotaryEmbedding": {"rope_scaling"},
    "LlamaAttention": {"rotary_emb", "qk_norm"},
    "MixtralMoE": {"renormalize"},
}


def test_each_class_of_a_level_is_in_the_graph_and_uses_no_higher_level() -> None:
    levels = {
        name: level
        for level, module in enumerate((L1, L2, L3, L4), 1)
        for name, one in vars(module).items()
        if getattr(one, "__module__", "") == module.__name__ and isinstance(one, type)
    }
    imports = imports_of_models()

    assert {module.class_name: module.level for module in imports} == levels
    for module, used in imports.items():
        assert all(levels[one.class_name] <= module.level for one in used), module


def parameters(name: str, method: str) -> list[inspect.Parameter]:
    (cls,) = {getattr(module, name) for module in (L1, L2, L3, L4) if hasattr(module, name)}
    return list(inspect.signature(getattr(cls, method)).parameters.values())[1:]


@pytest.mark.parametrize("names", FORWARD)
def test_forward_takes_the_arguments_of_the_hierarchy(names: str) -> None:
    for name in FORWARD[names].split():
        assert [parameter.name for parameter in parameters(name, "forward")] == names.split()


@pytest.mark.parametrize("name", VLLM)
def test_construction_takes_arguments_of_vllm(name: str) -> None:
    expected, found = VLLM[name].split(), parameters(name, "__init__")
    by_position = [one.name for one in found if one.kind is not inspect.Parameter.KEYWORD_ONLY]

    assert by_position == expected[: len(by_position)]
    assert {one.name for one in found} <= {*expected, *OURS.get(name, ())}
