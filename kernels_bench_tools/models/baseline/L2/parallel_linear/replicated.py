"""A linear layer that every rank has whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.linear import Linear


class ReplicatedLinear(nn.Module):
    """Compute all outputs on every rank.

    Differs from vLLM: no ``params_dtype``, ``quant_config``, ``prefix`` and ``return_bias``.
    """

    def __init__(
        self, input_size: int, output_size: int, bias: bool = True, skip_bias_add: bool = False
    ) -> None:
        super().__init__()
        self.skip_bias_add = skip_bias_add
        self.weight = nn.Parameter(torch.empty(output_size, input_size))
        self.bias = nn.Parameter(torch.zeros(output_size)) if bias else None
        self.linear = Linear()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs (tokens, outputs), and the bias if ``skip_bias_add`` left it out."""
        added = None if self.skip_bias_add else self.bias
        return self.linear(x, self.weight, added), self.bias if self.skip_bias_add else None
