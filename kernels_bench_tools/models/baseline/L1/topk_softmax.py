"""Choice of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TopKSoftmax(nn.Module):
    """Choose each token's experts by the softmax of its logits, like vLLM's function ``fused_topk``."""

    def __init__(self, top_k: int, renormalize: bool) -> None:
        super().__init__()
        self.top_k = top_k
        self.renormalize = renormalize

    def forward(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (float32) and experts (int64), both (tokens, top_k), of logits (tokens, experts)."""
        weights, experts = router_logits.softmax(dim=-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        if self.renormalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, experts
