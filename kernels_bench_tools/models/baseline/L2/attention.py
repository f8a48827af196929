"""Attention of Llama, Mixtral and Qwen with a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels_bench_tools.models.baseline.forward_context import get_forward_context
from kernels_bench_tools.models.baseline.L1.flash_attn_decode import FlashAttnDecode
from kernels_bench_tools.models.baseline.L1.flash_attn_prefill import FlashAttnPrefill
from kernels_bench_tools.models.baseline.L1.rms_norm import RMSNorm
from kernels_bench_tools.models.baseline.L1.store_kvcache import StoreKVCache
from kernels_bench_tools.models.baseline.L2.parallel_linear.qkv import QKVParallelLinear
from kernels_bench_tools.models.baseline.L2.parallel_linear.row import RowParallelLinear
from kernels_bench_tools.models.config import ModelConfig


class LlamaAttention(nn.Module):
    """Attend to the earlier tokens of each sequence in the cache, with this rank's heads.

    Differs from vLLM: ``rotary_emb`` is given, ``qk_norm`` as in its ``Qwen3Attention``, and the cache is an attribute.
    """

    def __init__(
        self,
        config: ModelConfig,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        rotary_emb: nn.Module,
        bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.qkv_proj = QKVParallelLinear(hidden_size, self.head_dim, num_heads, num_kv_heads, bias)
        self.o_proj = RowParallelLinear(num_heads * self.head_dim, hidden_size, bias=False)
        self.num_heads, self.num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if qk_norm else None
        self.rotary_emb = rotary_emb
        self.store_kvcache = StoreKVCache()
        self.prefill = FlashAttnPrefill()
        self.decode = FlashAttnDecode()
        self.kv_cache: Tensor | None = None

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        """Make an empty cache (keys and values, num_blocks, block_size, kv_heads, head_dim) where the weights are."""
        shape = (2, num_blocks, block_size, self.num_kv_heads, self.head_dim)
        self.kv_cache = self.o_proj.weight.new_zeros(shape)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """Return (tokens, hidden_size), the shape of ``hidden_states``; ``positions`` is (tokens,).

        Raises:
            RuntimeError: There is no cache.
            LookupError: Called outside of ``set_forward_context``.
        """
        qkv, _ = self.qkv_proj(hidden_states)
        keys = self.num_kv_heads * self.head_dim
        q, k, v = qkv.split([self.num_heads * self.head_dim, keys, keys], dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = (self._normalize(norm, x) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        q, k = self.rotary_emb(positions, q, k)
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        output, _ = self.o_proj(self._attend(q, k, v).flatten(1))
        return output

    def _normalize(self, norm: RMSNorm, x: Tensor) -> Tensor:
        return norm(x.unflatten(-1, (-1, self.head_dim))).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return (tokens, heads, head_dim): the first sequences decode, the others prefill."""
        if self.kv_cache is None:
            raise RuntimeError("allocate_kv_cache has not been called")
        batch, caches = get_forward_context(), self.kv_cache.unbind()
        self.store_kvcache(key, value, *caches, batch.slot_mapping)
        first = batch.num_decodes
        outputs = []
        if first:
            outputs.append(
                self.decode(query[:first], *caches, batch.block_tables[:first], batch.seq_lens[:first])
            )
        if batch.query_lens[first:]:
            lengths = batch.query_lens[first:], batch.lengths[first:]
            outputs.append(self.prefill(query[first:], *caches, batch.block_tables[first:], *lengths))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
