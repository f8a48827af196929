"""Tensors as bits: whether two are identical, and a fingerprint that any change shows in."""

from __future__ import annotations

import secrets
from functools import cache

import torch
from torch import Tensor

_CHUNK = 2**22
_ALIGNMENT = 512
_SHIFTS = 128
_MASK = 2**64 - 1
_MIX = 0x9E3779B97F4A7C15


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors of one shape and type are identical, NaN and signed zeros included."""
    return torch.equal(_as_integers(left), _as_integers(right))


def fingerprint(value: Tensor) -> int:
    """Return 64 bits that change with any element's value or place.

    A sum weighted by position: a plain sum or exclusive-or misses exchanged elements, and says of rows
    that repeat the same as of zeros. One pass over the tensor, in chunks of 32 MiB.

    Args:
        value: Any shape, type and strides; its memory need not be contiguous.
    """
    whole = _as_integers(value)
    sums = []
    for chunk in whole.split(_CHUNK):
        weights = _weights(str(chunk.device))[: chunk.numel()]
        sums.append((chunk * weights).sum())
    total = whole.numel()
    for part in torch.stack(sums).tolist() if sums else []:
        total = (total * _MIX + part) & _MASK
    return total


def elsewhere(value: Tensor) -> Tensor:
    """Return a copy at an address that no plain allocation of its size has; aligned to 512 bytes."""
    if not value.is_contiguous():
        return value.clone()
    step = _ALIGNMENT // value.element_size()
    shift = step * (1 + secrets.randbelow(_SHIFTS))
    memory = torch.empty(value.numel() + shift, dtype=value.dtype, device=value.device)
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    copy.set_(memory.untyped_storage(), shift, value.shape, value.stride())
    return copy.copy_(value)


@cache
def _weights(device: str) -> Tensor:
    """Return odd random numbers: multiplied by one, no difference modulo 2**64 vanishes."""
    generator = torch.Generator(device=device).manual_seed(_MIX >> 1)
    return torch.randint(2**62, (_CHUNK,), generator=generator, device=device) | 1


def _as_integers(value: Tensor) -> Tensor:
    """Return the elements as a flat tensor of integers; a view where the memory allows it."""
    flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    size = flat.numel() * flat.element_size()
    for dtype, width in ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2)):
        if size % width == 0 and width >= flat.element_size():
            aligned = flat.storage_offset() * flat.element_size() % width == 0
            return (flat if aligned else flat.clone()).view(dtype)
    return flat.view(torch.uint8)
