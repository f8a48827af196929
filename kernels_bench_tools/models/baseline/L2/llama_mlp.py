"""The feed-forward layer of Llama."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.silu_and_mul import SiluAndMul
from kernels_bench_tools.models.baseline.L2.parallel_linear.merged_column import MergedColumnParallelLinear
from kernels_bench_tools.models.baseline.L2.parallel_linear.row import RowParallelLinear


class LlamaMLP(nn.Module):
    """Project up, apply SwiGLU and project down; differs from vLLM: no ``quant_config``, ``prefix``, ``reduce_results``."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, hidden_act: str = "silu", *, bias: bool = False
    ) -> None:
        super().__init__()
        if hidden_act != "silu":
            raise ValueError(f"hidden_act {hidden_act!r} is not silu")
        self.gate_up_proj = MergedColumnParallelLinear(hidden_size, [intermediate_size] * 2, bias)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias)
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``x``."""
        gate_up, _ = self.gate_up_proj(x)
        output, _ = self.down_proj(self.act_fn(gate_up))
        return output
