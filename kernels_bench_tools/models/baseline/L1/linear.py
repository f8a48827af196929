"""Product with a weight matrix."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.operators import matmul


class Linear(nn.Module):
    """Multiply by a weight that another module owns, as vLLM's ``UnquantizedLinearMethod`` does."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias``: (..., n) of (..., k), (n, k) and (n,)."""
        return matmul.reference(x, weight, bias)
