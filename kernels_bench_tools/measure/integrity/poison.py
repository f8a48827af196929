"""Memory that shows when it is returned unwritten."""

from __future__ import annotations

import torch
from torch import Tensor

_FEWEST, _MOST = 3, 24
_BYTES = 256 * 2**20
"""Of small blocks many are filled: allocators keep lists of those, and nobody knows which is next."""


def poison_memory(like: Tensor) -> None:
    """Leave NaN in the memory that the next outputs are likely to get.

    A kernel that forgets elements, or a function that computes nothing, then returns NaN instead of the
    previous call's right result. Allocators hand out what was freed last, so a few blocks of the output's
    size are filled and freed; what an implementation still holds is not touched.

    Args:
        like: A tensor of the output's shape, strides, type and device; not changed.
    """
    if not like.numel():
        return
    value = float("nan") if like.is_floating_point() or like.is_complex() else 113
    try:
        count = max(_FEWEST, min(_MOST, _BYTES // (like.numel() * like.element_size())))
        blocks = [
            torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            for _ in range(count)
        ]
    except torch.OutOfMemoryError:  # then nothing is left over to be returned unwritten, either
        return
    for block in blocks:
        block.fill_(value)
