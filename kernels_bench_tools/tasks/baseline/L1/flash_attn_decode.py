"""Attention of one new token of each sequence to the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class FlashAttnDecode(nn.Module):
    """Attend all sequences at once, like vLLM's ``flash_attn_with_kvcache``; reads the whole block table of each."""

    def forward(
        self, query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
    ) -> Tensor:
        """Return (sequences, heads, head_size), the shape of ``query``.

        Caches are (blocks, block_size, kv_heads, head_size), block tables (sequences, blocks), lengths (sequences,).
        """
        keys, values = (
            cache[block_tables].flatten(1, 2).transpose(1, 2) for cache in (key_cache, value_cache)
        )
        seen = torch.arange(keys.shape[2], device=query.device) < seq_lens[:, None]
        grouped = query.shape[1] != keys.shape[1]
        attention = functional.scaled_dot_product_attention
        output = attention(query[:, :, None], keys, values, attn_mask=seen[:, None, None], enable_gqa=grouped)
        return output[:, :, 0]
