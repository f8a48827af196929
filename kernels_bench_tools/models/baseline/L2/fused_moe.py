"""The experts of a mixture."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.allreduce import AllReduce
from kernels_bench_tools.models.baseline.L1.moe_align import MoEAlign
from kernels_bench_tools.models.baseline.L1.moe_grouped_gemm import MoEGroupedGemm
from kernels_bench_tools.models.baseline.L1.moe_sum import MoESum
from kernels_bench_tools.models.baseline.L1.silu_and_mul import SiluAndMul
from kernels_bench_tools.models.baseline.L1.topk_softmax import TopKSoftmax
from kernels_bench_tools.models.baseline.parallel_state import (
    divide,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    part,
)


class FusedMoE(nn.Module):
    """Apply each token's experts, of which every rank has a share of the intermediate columns.

    Differs from vLLM: no expert parallelism, grouped choice of experts, shared experts or quantization.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        reduce_results: bool = False,
        renormalize: bool = True,
    ) -> None:
        super().__init__()
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.reduce_results = reduce_results
        self.top_k = top_k
        self.own_size = divide(intermediate_size, self.tp_size)
        self.w13_weight = nn.Parameter(torch.empty(num_experts, 2 * self.own_size, hidden_size))
        self.w2_weight = nn.Parameter(torch.empty(num_experts, hidden_size, self.own_size))
        self.topk_softmax = TopKSoftmax(top_k, renormalize)
        self.align = MoEAlign(num_experts)
        self.grouped_gemm = MoEGroupedGemm()
        self.act_fn = SiluAndMul()
        self.sum = MoESum()
        self.all_reduce = AllReduce()

    def forward(self, hidden_states: Tensor, router_logits: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``; logits are (tokens, experts)."""
        weights, experts = self.topk_softmax(router_logits)
        order, ends = self.align(experts)
        gate_up = self.grouped_gemm(hidden_states[order // self.top_k], self.w13_weight, ends)
        down = self.grouped_gemm(self.act_fn(gate_up), self.w2_weight, ends)
        output = self.sum(down, order, weights)
        if self.reduce_results and self.tp_size > 1:
            output = self.all_reduce(output)
        return output

    def weight_loader(
        self, param: Tensor, loaded_weight: Tensor, shard_id: Literal["w1", "w2", "w3"], expert_id: int
    ) -> None:
        """Copy this rank's share of one expert's gate (w1), up (w3) or down (w2) projection."""
        expert = param.data[expert_id]
        own = part(loaded_weight, 1 if shard_id == "w2" else 0, self.tp_rank, self.own_size)
        if shard_id != "w2":
            expert = part(expert, 0, 0 if shard_id == "w1" else 1, self.own_size)
        expert.copy_(own)
