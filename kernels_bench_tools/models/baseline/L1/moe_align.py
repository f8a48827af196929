"""Order of tokens by expert."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MoEAlign(nn.Module):
    """Sort pairs of token and expert by expert, like vLLM's ``moe_align_block_size``, without padding to blocks."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs in order of expert (tokens * top_k,), and where each expert's end (experts,), int32.

        A pair is token * top_k + choice; ``topk_ids`` is (tokens, top_k).
        """
        experts, order = topk_ids.flatten().sort(stable=True)
        numbers = torch.arange(self.num_experts, device=topk_ids.device)
        return order, torch.searchsorted(experts, numbers, right=True, out_int32=True)
