"""The decoder layer of Llama, Qwen2 and Qwen3."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L2.llama_mlp import LlamaMLP
from kernels_bench_tools.models.baseline.L3.decoder_layer import DecoderLayer
from kernels_bench_tools.models.config import ModelConfig


class LlamaDecoderLayer(DecoderLayer):
    """A layer with one feed-forward network.

    Differs from vLLM: ``config`` instead of vLLM's own, ``rotary_emb`` is given, and no ``prefix``.
    """

    def __init__(self, config: ModelConfig, rotary_emb: nn.Module) -> None:
        super().__init__(config, rotary_emb)
        self.mlp = LlamaMLP(config.hidden_size, config.intermediate_size, config.hidden_act)

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        return self.mlp(hidden_states)
