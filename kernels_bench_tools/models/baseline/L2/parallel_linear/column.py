"""A linear layer whose outputs are split over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.linear import Linear
from kernels_bench_tools.models.baseline.parallel_state import (
    divide,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    part,
)


class ColumnParallelLinear(nn.Module):
    """Compute this rank's share of the outputs.

    Differs from vLLM: no ``gather_output``, ``params_dtype``, ``quant_config``, ``prefix`` and ``return_bias``.
    """

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, *, skip_bias_add: bool = False
    ) -> None:
        super().__init__()
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.skip_bias_add = skip_bias_add
        rows = divide(output_size, self.tp_size)
        self.weight = nn.Parameter(torch.empty(rows, input_size))
        self.bias = nn.Parameter(torch.zeros(rows)) if bias else None
        self.linear = Linear()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return this rank's outputs (tokens, outputs / ranks), and the bias if ``skip_bias_add`` left it out."""
        added = None if self.skip_bias_add else self.bias
        return self.linear(x, self.weight, added), self.bias if self.skip_bias_add else None

    def load_rows(self, param: Tensor, loaded_weight: Tensor, index: int, start: int, size: int) -> None:
        """Copy the ``index``-th ``size`` rows of a whole weight or bias to the rows from ``start``."""
        param.data[start : start + size].copy_(part(loaded_weight, 0, index, size))
