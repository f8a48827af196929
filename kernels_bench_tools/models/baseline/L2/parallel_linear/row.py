"""A linear layer whose inputs are split over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.allreduce import AllReduce
from kernels_bench_tools.models.baseline.L1.linear import Linear
from kernels_bench_tools.models.baseline.parallel_state import (
    divide,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    part,
)


class RowParallelLinear(nn.Module):
    """Multiply this rank's share of the inputs, and add up the ranks' products; rank 0 adds the bias.

    Differs from vLLM: no ``input_is_parallel`` (it is), ``params_dtype``, ``quant_config``, ``prefix``, ``return_bias``.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        *,
        skip_bias_add: bool = False,
        reduce_results: bool = True,
    ) -> None:
        super().__init__()
        self.tp_rank = get_tensor_model_parallel_rank()
        self.tp_size = get_tensor_model_parallel_world_size()
        self.skip_bias_add = skip_bias_add
        self.reduce_results = reduce_results
        self.weight = nn.Parameter(torch.empty(output_size, divide(input_size, self.tp_size)))
        self.bias = nn.Parameter(torch.zeros(output_size)) if bias else None
        self.linear = Linear()
        self.all_reduce = AllReduce()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs (tokens, outputs) of (tokens, inputs / ranks), and the bias if ``skip_bias_add``."""
        added = None if self.skip_bias_add or self.tp_rank else self.bias
        output = self.linear(x, self.weight, added)
        if self.reduce_results and self.tp_size > 1:
            output = self.all_reduce(output)
        return output, self.bias if self.skip_bias_add else None

    def weight_loader(self, param: Tensor, loaded_weight: Tensor) -> None:
        """Copy this rank's columns of the whole weight, or the bias."""
        own = part(loaded_weight, 1, self.tp_rank, self.weight.shape[1]) if param.dim() > 1 else loaded_weight
        param.data.copy_(own)
