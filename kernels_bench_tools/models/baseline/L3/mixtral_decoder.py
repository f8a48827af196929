"""The decoder layer of Mixtral."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L2.mixtral_moe import MixtralMoE
from kernels_bench_tools.models.baseline.L3.decoder_layer import DecoderLayer
from kernels_bench_tools.models.config import ModelConfig


class MixtralDecoderLayer(DecoderLayer):
    """A layer with a mixture of experts; raises ``ValueError`` if the model has none.

    Differs from vLLM: ``rotary_emb`` is given, no ``cache_config``, ``quant_config`` and ``prefix``.
    """

    def __init__(self, config: ModelConfig, rotary_emb: nn.Module) -> None:
        super().__init__(config, rotary_emb)
        if config.experts is None:
            raise ValueError(f"{config.name} has no experts")
        self.block_sparse_moe = MixtralMoE(
            config.experts.num_experts,
            config.experts.num_experts_per_tok,
            config.hidden_size,
            config.experts.intermediate_size,
        )

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        return self.block_sparse_moe(hidden_states)
