"""The decoder layer of Qwen3 with experts."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L2.qwen3_moe import Qwen3MoeSparseMoeBlock
from kernels_bench_tools.models.baseline.L3.decoder_layer import DecoderLayer
from kernels_bench_tools.models.config import ModelConfig


class Qwen3MoeDecoderLayer(DecoderLayer):
    """A layer with a mixture of experts; raises ``ValueError`` if the model has none.

    Differs from vLLM: ``config`` instead of vLLM's own, ``rotary_emb`` is given, and no ``prefix``.
    """

    def __init__(self, config: ModelConfig, rotary_emb: nn.Module) -> None:
        super().__init__(config, rotary_emb)
        self.mlp = Qwen3MoeSparseMoeBlock(config)

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        return self.mlp(hidden_states)
