"""Whole models, and their construction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1 import RMSNorm, RotaryEmbedding
from kernels_bench_tools.models.baseline.L2 import ParallelLMHead, VocabParallelEmbedding
from kernels_bench_tools.models.baseline.L3 import (
    DecoderLayer,
    LlamaDecoderLayer,
    MixtralDecoderLayer,
    Qwen3MoeDecoderLayer,
)
from kernels_bench_tools.models.baseline.parallel_state import tensor_parallel
from kernels_bench_tools.models.config import ModelConfig, ModelType, check_tensor_parallel


class LlamaModel(nn.Module):
    """A model without the product that gives logits; all layers share one rotary embedding.

    Differs from vLLM: ``config`` instead of vLLM's own, ``layer_type`` has no default, and no ``prefix``.
    """

    def __init__(self, config: ModelConfig, layer_type: type[DecoderLayer]) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        rotary_emb = RotaryEmbedding(
            config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            base=config.rope_theta,
            rope_scaling=config.rope_scaling,
        )
        layers = (layer_type(config, rotary_emb) for _ in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return hidden states (tokens, hidden_size) of (tokens,) and (tokens,)."""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class CausalLM(nn.Module):
    """A model that predicts the next token; subclasses choose the layers. vLLM has no such class.

    They differ from vLLM's: ``config`` instead of vLLM's own, and no ``prefix``.
    """

    layer_type: type[DecoderLayer]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.model = LlamaModel(config, self.layer_type)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return hidden states (tokens, hidden_size) of (tokens,) and (tokens,), inside ``set_forward_context``."""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return this rank's logits (tokens, own tokens of the vocabulary) of (tokens, hidden_size)."""
        return self.lm_head(hidden_states)

    def allocate_kv_cache(self, num_blocks: int, block_size: int = 16) -> None:
        for layer in self.model.layers:
            layer.self_attn.allocate_kv_cache(num_blocks, block_size)


class LlamaForCausalLM(CausalLM):
    layer_type = LlamaDecoderLayer


class MixtralForCausalLM(CausalLM):
    layer_type = MixtralDecoderLayer


class Qwen3MoeForCausalLM(CausalLM):
    layer_type = Qwen3MoeDecoderLayer


MODELS: dict[ModelType, type[CausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "mixtral": MixtralForCausalLM,
    "qwen2": LlamaForCausalLM,
    "qwen3": LlamaForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
}


def build_model(
    config: ModelConfig,
    device: str = "meta",
    *,
    rank: int = 0,
    size: int = 1,
    dtype: torch.dtype | None = None,
) -> CausalLM:
    """Return one rank's model with empty weights, of the configuration's dtype unless another is given.

    Raises:
        ModelError: The model cannot be split over ``size`` ranks.
        ValueError: There is no such rank.
    """
    check_tensor_parallel(config, size)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype or getattr(torch, config.dtype))
    try:
        with torch.device(device), tensor_parallel(rank, size):
            return MODELS[config.model_type](config)
    finally:
        torch.set_default_dtype(default)
