"""Decoder layers."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1 import RMSNorm
from kernels_bench_tools.models.baseline.L2 import (
    LlamaAttention,
    LlamaMLP,
    MixtralMoE,
    Qwen3MoeSparseMoeBlock,
)
from kernels_bench_tools.models.config import ModelConfig


class DecoderLayer(nn.Module):
    """Attention and a feed-forward layer, each after a norm; subclasses define the latter. vLLM has no such class."""

    mlp: nn.Module

    def __init__(self, config: ModelConfig, rotary_emb: nn.Module) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(
            config,
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            rotary_emb=rotary_emb,
            bias=config.qkv_bias,
            qk_norm=config.qk_norm,
        )
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        return self.mlp(hidden_states)

    def forward(
        self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states and residual, whose sum is the layer's output; both are (tokens, hidden_size).

        ``positions`` is (tokens,); the first layer has no residual.
        """
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.feed_forward(hidden_states), residual


class LlamaDecoderLayer(DecoderLayer):
    """A layer with one feed-forward network.

    Differs from vLLM: ``config`` instead of vLLM's own, ``rotary_emb`` is given, and no ``prefix``.
    """

    def __init__(self, config: ModelConfig, rotary_emb: nn.Module) -> None:
        super().__init__(config, rotary_emb)
        self.mlp = LlamaMLP(config.hidden_size, config.intermediate_size)


class MixtralDecoderLayer(DecoderLayer):
    """A layer with a mixture of experts.

    Differs from vLLM: ``rotary_emb`` is given, no ``cache_config``, ``quant_config`` and ``prefix``.
    """

    def __init__(self, config: ModelConfig, rotary_emb: nn.Module) -> None:
        super().__init__(config, rotary_emb)
        assert config.experts
        self.block_sparse_moe = MixtralMoE(
            config.experts.num_experts,
            config.experts.num_experts_per_tok,
            config.hidden_size,
            config.experts.intermediate_size,
        )

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        return self.block_sparse_moe(hidden_states)


class Qwen3MoeDecoderLayer(DecoderLayer):
    """A layer with a mixture of experts.

    Differs from vLLM: ``config`` instead of vLLM's own, ``rotary_emb`` is given, and no ``prefix``.
    """

    def __init__(self, config: ModelConfig, rotary_emb: nn.Module) -> None:
        super().__init__(config, rotary_emb)
        self.mlp = Qwen3MoeSparseMoeBlock(config)
