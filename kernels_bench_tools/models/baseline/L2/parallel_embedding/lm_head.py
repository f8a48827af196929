"""The product with an embedding's rows that gives the logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.L1.linear import Linear
from kernels_bench_tools.models.baseline.L2.parallel_embedding.vocab import VocabParallelEmbedding
from kernels_bench_tools.models.config import VOCAB_PADDING


class ParallelLMHead(VocabParallelEmbedding):
    """Compute the logits of this rank's tokens, without those of the padding.

    Differs from vLLM, besides as its base class does: ``forward`` computes, where vLLM's raises an error.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        *,
        padding_size: int = VOCAB_PADDING,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_size=padding_size)
        self.bias = nn.Parameter(torch.zeros(self.weight.shape[0])) if bias else None
        self.linear = Linear()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return this rank's logits (tokens, own tokens of the vocabulary) of (tokens, embedding_dim)."""
        return self.linear(hidden_states, self.weight, self.bias)[..., : self.own_rows]
