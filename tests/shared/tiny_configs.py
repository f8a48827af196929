"""What the ``config.json`` of tiny models of every supported kind says."""

from typing import Any

_COMMON: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 250,  # not a multiple of 64
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-2,  # so that it matters
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
HUGGINGFACE: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, "rope_scaling": _LLAMA3, "tie_word_embeddings": True},
    "mistral": {**_COMMON, "head_dim": 16, "sliding_window": None},
    "mixtral": {**_COMMON, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2": _COMMON,
    "qwen3": {**_COMMON, "head_dim": 16},
    "qwen3_moe": {
        **_COMMON,
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}
"""By ``model_type``, what a ``config.json`` says besides."""
ONLY_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "falcon_mamba": {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "state_size": 8,
        "time_step_rank": 4,
        "vocab_size": 250,
        "tie_word_embeddings": False,
    },
    "qwen3_next": {
        **_COMMON,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    },
}
"""The same of models of which only transformers has modules."""
