"""Attention of one new token of each sequence to the paged cache."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.operators import paged_attention


class FlashAttnDecode(nn.Module):
    """Attend all sequences at once, like vLLM's ``flash_attn_with_kvcache``; reads the whole block table of each."""

    def forward(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
    ) -> Tensor:
        """Return (sequences, heads, head_size), the shape of ``query``.

        Caches are (blocks, block_size, kv_heads, head_size), block tables (sequences, blocks), lengths (sequences,).
        """
        return paged_attention.torch_paged(query, key_cache, value_cache, block_tables, seq_lens)
