"""The projections to queries, keys and values, split over the ranks by heads, as one product."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from kernels_bench_tools.models.baseline.L2.parallel_linear.column import ColumnParallelLinear
from kernels_bench_tools.models.baseline.parallel_state import divide, get_tensor_model_parallel_world_size


class QKVParallelLinear(ColumnParallelLinear):
    """Compute queries, keys and values of this rank's heads; ranks share a key head where there are fewer of them.

    Differs from vLLM as its base class does.
    """

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        skip_bias_add: bool = False,
    ) -> None:
        tp_size = get_tensor_model_parallel_world_size()
        total_num_kv_heads = total_num_kv_heads or total_num_heads
        self.head_size = head_size
        self.num_heads = divide(total_num_heads, tp_size)
        if total_num_kv_heads < tp_size:
            self.num_kv_heads, self.num_kv_head_replicas = 1, divide(tp_size, total_num_kv_heads)
        else:
            self.num_kv_heads, self.num_kv_head_replicas = divide(total_num_kv_heads, tp_size), 1
        heads = self.num_heads + 2 * self.num_kv_heads
        super().__init__(hidden_size, heads * tp_size * head_size, bias, skip_bias_add=skip_bias_add)

    def weight_loader(
        self, param: Tensor, loaded_weight: Tensor, loaded_shard_id: Literal["q", "k", "v"]
    ) -> None:
        """Copy this rank's heads of the whole weight or bias of queries, keys or values."""
        if loaded_shard_id == "q":
            self.load_rows(param, loaded_weight, self.tp_rank, 0, self.num_heads * self.head_size)
            return
        before = self.num_heads + (self.num_kv_heads if loaded_shard_id == "v" else 0)
        index, size = self.tp_rank // self.num_kv_head_replicas, self.num_kv_heads * self.head_size
        self.load_rows(param, loaded_weight, index, before * self.head_size, size)
