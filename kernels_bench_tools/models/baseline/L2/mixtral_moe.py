"""The mixture of experts of Mixtral."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L2.fused_moe import FusedMoE
from kernels_bench_tools.models.baseline.L2.parallel_linear.replicated import ReplicatedLinear


class MixtralMoE(nn.Module):
    """Route each token to its experts; differs from vLLM: no dtypes, ``quant_config``, ``tp_size`` and ``prefix``."""

    def __init__(self, num_experts: int, top_k: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate = ReplicatedLinear(hidden_size, num_experts, bias=False)
        self.experts = FusedMoE(num_experts, top_k, hidden_size, intermediate_size, reduce_results=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``."""
        router_logits, _ = self.gate(hidden_states)
        return self.experts(hidden_states, router_logits)
