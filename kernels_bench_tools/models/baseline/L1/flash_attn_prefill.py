"""Causal attention of several new tokens of each sequence to the paged cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kernels_bench_tools.operators import flash_attn


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
    ) -> Tensor:
        """Return (tokens, heads, head_size), the shape of ``query``.

        ``query_lens`` has the new tokens of each sequence, ``lengths`` all of them. Caches are (blocks, block_size,
        kv_heads, head_size), block tables (sequences, blocks).
        """
        outputs = []
        parts = query.split(list(query_lens))
        for new, table, length in zip(parts, block_tables, lengths, strict=True):
            blocks = table[: -(-length // key_cache.shape[1])]
            keys, values = (cache[blocks].flatten(0, 1)[None, :length] for cache in (key_cache, value_cache))
            whole = new.shape[0] == length
            # torch aligns a causal mask to the first key.
            attend = flash_attn.torch_attention if whole else flash_attn.reference
            outputs.append(attend(new[None], keys, values, True)[0])
        return torch.cat(outputs)
