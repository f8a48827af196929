"""Rows of an embedding matrix."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.operators import embedding


class Embedding(nn.Module):
    """Look up rows of a weight that another module owns, as vLLM's ``UnquantizedEmbeddingMethod`` does."""

    def forward(self, input_ids: Tensor, weight: Tensor) -> Tensor:
        """Return (tokens, hidden_size) of (tokens,) and (rows, hidden_size)."""
        return embedding.reference(weight, input_ids)
