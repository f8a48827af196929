"""An embedding whose rows are split over the ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.allreduce import AllReduce
from kernels_bench_tools.models.baseline.L1.embedding import Embedding
from kernels_bench_tools.models.baseline.parallel_state import (
    divide,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from kernels_bench_tools.models.config import VOCAB_PADDING


class VocabParallelEmbedding(nn.Module):
    """Look up the tokens of this rank's range, and add up the ranks' results; rows that fill the padding are 0.

    Differs from vLLM: no ``params_dtype``, ``org_num_embeddings``, ``quant_config`` and ``prefix``.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, padding_size: int = VOCAB_PADDING) -> None:
        super().__init__()
        self.tp_size = get_tensor_model_parallel_world_size()
        padded = -(-num_embeddings // padding_size) * padding_size
        rows = divide(padded, self.tp_size)
        self.start = get_tensor_model_parallel_rank() * rows
        self.own_rows = max(0, min(rows, num_embeddings - self.start))
        self.weight = nn.Parameter(torch.zeros(rows, embedding_dim))
        self.embedding = Embedding()
        self.all_reduce = AllReduce()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return (tokens, embedding_dim) of (tokens,)."""
        if self.tp_size == 1:
            return self.embedding(input_ids, self.weight)
        own = input_ids - self.start
        foreign = (own < 0) | (own >= self.own_rows)
        rows = self.embedding(own.masked_fill(foreign, 0), self.weight)
        return self.all_reduce(rows.masked_fill(foreign[:, None], 0))

    def weight_loader(self, param: Tensor, loaded_weight: Tensor) -> None:
        """Copy this rank's rows of the whole weight."""
        param.data[: self.own_rows].copy_(loaded_weight[self.start : self.start + self.own_rows])
