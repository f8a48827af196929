"""SwiGLU of gate and up projections side by side."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.operators import activation


class SiluAndMul(nn.Module):
    """Multiply the SiLU of the left half of the last axis by the right half, as vLLM's class does."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., d / 2) of (..., d)."""
        return activation.reference(x)
