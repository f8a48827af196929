"""Products of consecutive groups of rows with one matrix each."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.operators import grouped_gemm


class MoEGroupedGemm(nn.Module):
    """Multiply each expert's rows by its weight, like vLLM's ``invoke_fused_moe_kernel``."""

    def forward(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Return (rows, n) of (rows, k), (experts, n, k) and where the rows of each expert end (experts,), int32."""
        return grouped_gemm.torch_grouped(x, weight, ends)
