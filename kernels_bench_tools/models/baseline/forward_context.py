"""What attention needs to know about a batch; as in vLLM it is set around a forward pass, not passed through it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_SIZE = 16
"""Tokens of a block of the cache, in the models that this project measures."""


@dataclass(frozen=True)
class AttentionMetadata:
    """The sequences of a batch: first those of one new token (decode), then those of several (prefill)."""

    query_lens: tuple[int, ...]
    """New tokens of each sequence."""
    lengths: tuple[int, ...]
    """All tokens of each sequence, the new ones at the end."""
    num_decodes: int
    seq_lens: Tensor
    """``lengths`` on the device, (sequences,)."""
    block_tables: Tensor
    """Blocks of the cache that hold each sequence's tokens in order, (sequences, blocks)."""
    slot_mapping: Tensor
    """Where in the cache each new token goes: block * block_size + offset, (tokens,)."""


def plan_batch(
    query_lens: Sequence[int], lengths: Sequence[int], block_tables: Tensor, block_size: int
) -> tuple[Tensor, AttentionMetadata]:
    """Return the positions of the new tokens (tokens,), and the metadata; both on the device of ``block_tables``.

    Raises:
        ValueError: A sequence of one new token follows one of several, or a block table is too short.
    """
    decodes = sum(new == 1 for new in query_lens)
    if any(new == 1 for new in query_lens[decodes:]):
        raise ValueError("sequences with one new token must come first")
    if max(lengths) > block_tables.shape[1] * block_size:
        raise ValueError(f"{block_tables.shape[1]} blocks of {block_size} do not hold {max(lengths)} tokens")
    device = block_tables.device
    spans = [range(length - new, length) for new, length in zip(query_lens, lengths, strict=True)]
    owners = [sequence for sequence, span in enumerate(spans) for _ in span]
    positions = torch.tensor([position for span in spans for position in span], device=device)
    blocks = block_tables[torch.tensor(owners, device=device), positions // block_size]
    return positions, AttentionMetadata(
        query_lens=tuple(query_lens),
        lengths=tuple(lengths),
        num_decodes=decodes,
        seq_lens=torch.tensor(lengths, device=device),
        block_tables=block_tables,
        slot_mapping=blocks * block_size + positions % block_size,
    )


_METADATA: ContextVar[AttentionMetadata] = ContextVar("attention_metadata")


@contextmanager
def set_forward_context(attn_metadata: AttentionMetadata) -> Iterator[None]:
    """Give the metadata to every attention that runs inside."""
    token = _METADATA.set(attn_metadata)
    try:
        yield
    finally:
        _METADATA.reset(token)


def get_forward_context() -> AttentionMetadata:
    """Return the metadata of the running pass; raise ``LookupError`` outside of one."""
    return _METADATA.get()
