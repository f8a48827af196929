"""Writing keys and values into the paged cache."""

from __future__ import annotations

from torch import Tensor, nn


class StoreKVCache(nn.Module):
    """Write new keys and values into their slots, like vLLM's kernel ``reshape_and_cache_flash``."""

    def forward(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write (tokens, kv_heads, head_size) into caches (blocks, block_size, kv_heads, head_size).

        ``slot_mapping`` (tokens,) has for each token its block * block_size + offset.
        """
        for new, cache in ((key, key_cache), (value, value_cache)):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, new)
