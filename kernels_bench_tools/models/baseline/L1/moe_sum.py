"""Weighted sum of the experts' results."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MoESum(nn.Module):
    """Weigh and add up each token's results, like vLLM's ``moe_sum`` with the weights that its product applies."""

    def forward(self, x: Tensor, order: Tensor, topk_weights: Tensor) -> Tensor:
        """Return (tokens, hidden_size) of results (tokens * top_k, hidden_size) in ``order``; weights (tokens, top_k)."""
        by_token = torch.empty_like(x).index_copy_(0, order, x).view(*topk_weights.shape, -1)
        return (by_token * topk_weights[..., None]).sum(dim=1).to(x.dtype)
