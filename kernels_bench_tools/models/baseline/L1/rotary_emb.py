"""Rotary position embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.config import RopeScaling
from kernels_bench_tools.operators import rotary


class RotaryEmbedding(nn.Module):
    """Rotate the halves of every head by the angle of its token's position.

    Differs from vLLM: ``rope_scaling`` instead of a subclass, no ``rotary_dim``, ``is_neox_style`` and ``dtype``.
    """

    cos_sin_cache: Tensor

    def __init__(
        self,
        head_size: int,
        *,
        max_position_embeddings: int,
        base: float,
        rope_scaling: RopeScaling | None = None,
    ) -> None:
        super().__init__()
        self.head_size = head_size
        if torch.get_default_device().type == "meta":
            # Arithmetic there makes torch import what compiles, which takes a second.
            cache = torch.empty(max_position_embeddings, head_size)
        else:
            cache = _cos_and_sin(head_size, max_position_embeddings, base, rope_scaling)
        self.register_buffer("cos_sin_cache", cache, persistent=False)

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return query and key (tokens, heads * head_size), rotated; ``positions`` is (tokens,)."""
        cos, sin = self.cos_sin_cache[positions].chunk(2, dim=-1)
        query, key = rotary.reference(self._heads(query), self._heads(key), cos, sin)
        return query[0].flatten(1), key[0].flatten(1)

    def _heads(self, x: Tensor) -> Tensor:
        """Return (1, tokens, heads, head_size)."""
        return x.unflatten(-1, (-1, self.head_size))[None]


def _cos_and_sin(width: int, positions: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """Return the cosines and sines (positions, width) of all angles, in the default dtype."""
    frequency = 1 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if scaling:
        frequency = _stretched(frequency, scaling)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    return torch.cat((angle.cos(), angle.sin()), dim=-1).to(torch.get_default_dtype())


def _stretched(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Return Llama 3's frequencies: long waves stretched by ``factor``, short ones kept, and those between blended.

    Source: ``rope_type`` "llama3" of Hugging Face transformers, whose formula a test compares.
    """
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling.factor)
