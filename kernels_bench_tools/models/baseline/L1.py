"""One kernel each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed, nn

from kernels_bench_tools.models.config import RopeScaling
from kernels_bench_tools.operators import (
    activation,
    embedding,
    flash_attn,
    grouped_gemm,
    kv_store,
    matmul,
    moe,
    paged_attention,
    rms_norm,
    rotary,
)


class Linear(nn.Module):
    """Multiply by a weight that another module owns, as vLLM's ``UnquantizedLinearMethod`` does."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias``: (..., n) of (..., k), (n, k) and (n,)."""
        return matmul.reference(x, weight, bias)


class Embedding(nn.Module):
    """Look up rows of a weight that another module owns, as vLLM's ``UnquantizedEmbeddingMethod`` does."""

    def forward(self, input_ids: Tensor, weight: Tensor) -> Tensor:
        """Return (tokens, hidden_size) of (tokens,) and (rows, hidden_size)."""
        return embedding.reference(weight, input_ids)


class RMSNorm(nn.Module):
    """Normalize the last axis, of ``x`` or of its sum with a residual.

    Differs from vLLM: no ``var_hidden_size``, ``has_weight`` and ``dtype``.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return ``x`` normalized; with a residual, also the sum. All are (..., hidden_size)."""
        return rms_norm.reference(x, self.weight, residual, self.variance_epsilon)


class SiluAndMul(nn.Module):
    """Multiply the SiLU of the left half of the last axis by the right half, as vLLM's class does."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., d / 2) of (..., d)."""
        return activation.reference(x)


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
        # (1, tokens, heads, head_size)
        q, k = (x.unflatten(-1, (-1, self.head_size))[None] for x in (query, key))
        q, k = rotary.reference(q, k, cos, sin)
        return q[0].flatten(1), k[0].flatten(1)


def _cos_and_sin(width: int, positions: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """Return the cosines and sines (positions, width) of all angles, in the default dtype."""
    frequency = 1 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if scaling:
        # Long waves are stretched by the factor, short ones kept, and those between blended: ``rope_type`` "llama3"
        # of Hugging Face transformers, whose formula a test compares.
        turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / scaling.factor)
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    return torch.cat((angle.cos(), angle.sin()), dim=-1).to(torch.get_default_dtype())


class StoreKVCache(nn.Module):
    """Write new keys and values into their slots, like vLLM's kernel ``reshape_and_cache_flash``."""

    def forward(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write (tokens, kv_heads, head_size) into caches (blocks, block_size, kv_heads, head_size).

        ``slot_mapping`` (tokens,) has for each token its block * block_size + offset.
        """
        kv_store.torch_store(key, value, key_cache, value_cache, slot_mapping)


class FlashAttnPrefill(nn.Module):
    """Attend one sequence at a time, like vLLM's ``flash_attn_varlen_func`` with a block table."""

    def forward(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        query_lens: Sequence[int],
        lengths: Sequence[int],
        attend: Callable[..., Tensor] = flash_attn.torch_attention,
    ) -> Tensor:
        """Return (tokens, heads, head_size), the shape of ``query``.

        ``query_lens`` has the new tokens of each sequence, ``lengths`` all of them. Caches are (blocks, block_size,
        kv_heads, head_size), block tables (sequences, blocks). ``attend`` computes whole prompts, because with fewer new
        tokens than keys torch aligns a causal mask to the first key.
        """
        outputs = []
        parts = query.split(list(query_lens))
        for new, table, length in zip(parts, block_tables, lengths, strict=True):
            blocks = table[: -(-length // key_cache.shape[1])]
            keys, values = (cache[blocks].flatten(0, 1)[None, :length] for cache in (key_cache, value_cache))
            compute = attend if new.shape[0] == length else flash_attn.reference
            outputs.append(compute(new[None], keys, values, True)[0])
        return torch.cat(outputs)


class FlashAttnDecode(nn.Module):
    """Attend all sequences at once, like vLLM's ``flash_attn_with_kvcache``; reads the whole block table of each."""

    def forward(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
    ) -> Tensor:
        """Return (sequences, heads, head_size), the shape of ``query``.

        Caches are (blocks, block_size, kv_heads, head_size), block tables (sequences, blocks), lengths (sequences,).
        """
        return paged_attention.torch_paged(query, key_cache, value_cache, block_tables, seq_lens)


class TopKSoftmax(nn.Module):
    """Choose each token's experts by the softmax of its logits, like vLLM's function ``fused_topk``."""

    def __init__(self, top_k: int, renormalize: bool) -> None:
        super().__init__()
        self.top_k = top_k
        self.renormalize = renormalize

    def forward(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (float32) and experts (int64), both (tokens, top_k), of logits (tokens, experts)."""
        weights, experts = router_logits.softmax(dim=-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        if self.renormalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, experts


class MoEAlign(nn.Module):
    """Sort pairs of token and expert by expert, like vLLM's ``moe_align_block_size``, without padding to blocks."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs in order of expert (tokens * top_k,), and where each expert's end (experts,), int32.

        A pair is token * top_k + choice; ``topk_ids`` is (tokens, top_k).
        """
        return moe.by_expert(topk_ids, self.num_experts)


class MoEGroupedGemm(nn.Module):
    """Multiply each expert's rows by its weight, like vLLM's ``invoke_fused_moe_kernel``."""

    def forward(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Return (rows, n) of (rows, k), (experts, n, k) and where the rows of each expert end (experts,), int32."""
        return grouped_gemm.torch_grouped(x, weight, ends)


class MoESum(nn.Module):
    """Weigh and add up each token's results, like vLLM's ``moe_sum`` with the weights that its product applies."""

    def forward(self, x: Tensor, order: Tensor, topk_weights: Tensor) -> Tensor:
        """Return (tokens, hidden_size) of results (tokens * top_k, hidden_size) in ``order``; weights (tokens, top_k)."""
        by_token = torch.empty_like(x).index_copy_(0, order, x).view(*topk_weights.shape, -1)
        return (by_token * topk_weights[..., None]).sum(dim=1).to(x.dtype)


class AllReduce(nn.Module):
    """Add up the ranks' tensors, like vLLM's function ``tensor_model_parallel_all_reduce``.

    Where ``torch.distributed`` is not initialized, the rank is simulated and its own part is returned.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, in ``x``."""
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(x)
        return x
