"""Several linear layers of one input, each split over the ranks, as one product."""

from __future__ import annotations

from torch import Tensor

from kernels_bench_tools.models.baseline.L2.parallel_linear.column import ColumnParallelLinear
from kernels_bench_tools.models.baseline.parallel_state import divide


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Compute this rank's share of each output, side by side; differs from vLLM as its base class does."""

    def __init__(
        self, input_size: int, output_sizes: list[int], bias: bool = True, *, skip_bias_add: bool = False
    ) -> None:
        super().__init__(input_size, sum(output_sizes), bias, skip_bias_add=skip_bias_add)
        self.own_sizes = [divide(size, self.tp_size) for size in output_sizes]

    def weight_loader(self, param: Tensor, loaded_weight: Tensor, loaded_shard_id: int) -> None:
        """Copy this rank's rows of the whole weight or bias of one of the outputs."""
        start, size = sum(self.own_sizes[:loaded_shard_id]), self.own_sizes[loaded_shard_id]
        self.load_rows(param, loaded_weight, self.tp_rank, start, size)
