"""The mixture of experts of Qwen3."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L2.fused_moe import FusedMoE
from kernels_bench_tools.models.baseline.L2.parallel_linear.replicated import ReplicatedLinear
from kernels_bench_tools.models.config import ModelConfig


class Qwen3MoeSparseMoeBlock(nn.Module):
    """Route each token to its experts; differs from vLLM: ``config`` instead of vLLM's own, and no ``prefix``.

    Raises:
        ValueError: The model has no experts.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.experts is None:
            raise ValueError(f"{config.name} has no experts")
        experts = config.experts
        self.gate = ReplicatedLinear(config.hidden_size, experts.num_experts, bias=False)
        self.experts = FusedMoE(
            experts.num_experts,
            experts.num_experts_per_tok,
            config.hidden_size,
            experts.intermediate_size,
            reduce_results=True,
            renormalize=experts.norm_topk_prob,
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        router_logits, _ = self.gate(hidden_states)
        return self.experts(hidden_states, router_logits)
