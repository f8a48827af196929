"""Writing keys and values into the paged cache."""

from __future__ import annotations

from torch import Tensor, nn

from kernels_bench_tools.operators import kv_store


class StoreKVCache(nn.Module):
    """Write new keys and values into their slots, like vLLM's kernel ``reshape_and_cache_flash``."""

    def forward(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write (tokens, kv_heads, head_size) into caches (blocks, block_size, kv_heads, head_size).

        ``slot_mapping`` (tokens,) has for each token its block * block_size + offset.
        """
        kv_store.torch_store(key, value, key_cache, value_cache, slot_mapping)
