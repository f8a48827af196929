"""Embedding, decoder layers and the last norm."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.rms_norm import RMSNorm
from kernels_bench_tools.models.baseline.L1.rotary_emb import RotaryEmbedding
from kernels_bench_tools.models.baseline.L2.parallel_embedding.vocab import VocabParallelEmbedding
from kernels_bench_tools.models.baseline.L3.decoder_layer import DecoderLayer
from kernels_bench_tools.models.config import ModelConfig


class LlamaModel(nn.Module):
    """A model without the product that gives logits; all layers share one rotary embedding.

    Differs from vLLM: ``config`` instead of vLLM's own, ``layer_type`` has no default, and no ``prefix``.
    """

    def __init__(
        self, config: ModelConfig, layer_type: Callable[[ModelConfig, nn.Module], DecoderLayer]
    ) -> None:
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
