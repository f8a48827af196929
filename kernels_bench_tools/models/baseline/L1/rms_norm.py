"""Root mean square normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.operators import rms_norm


class RMSNorm(nn.Module):
    """Normalize the last axis, of ``x`` or of its sum with a residual.

    Differs from vLLM: no ``var_hidden_size``, ``has_weight`` and ``dtype``.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return ``x`` normalized; with a residual, also the sum. All are (..., hidden_size)."""
        return rms_norm.reference(x, self.weight, residual, self.variance_epsilon)
