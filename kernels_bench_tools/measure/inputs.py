"""Inputs on which careless kernels go wrong, made from ordinary ones."""

from __future__ import annotations

import torch
from torch import Tensor

SPIKE = 100.0
TAIL = 3
"""Columns at a row's end that a kernel working in vectors of 4 may forget."""


def constant_rows(x: Tensor, value: float = 3.0) -> Tensor:
    """Return a tensor like ``x`` in which all elements are equal: variances are 0, maxima tie."""
    return torch.full_like(x, value)


def spikes(x: Tensor) -> Tensor:
    """Return ``x`` with one large element per row, at a different column in each; the rest is small.

    The last rows have theirs in the last columns, which a kernel that stops too early never reads.

    Args:
        x: Floating point, at least one axis.
    """
    small = x * 1e-2
    rows = small.reshape(-1, x.shape[-1])  # a copy that shares no memory with x
    count, columns = rows.shape
    row = torch.arange(count, device=x.device)
    column = row * 7919 % columns
    tail = min(TAIL, count, columns)
    column[count - tail :] = torch.arange(columns - tail, columns, device=x.device)
    rows[row, column] = SPIKE
    return rows.view(x.shape)


def transposed(x: Tensor) -> Tensor:
    """Return ``x``'s values with the first two axes swapped in memory: rows lie apart, each contiguous.

    Args:
        x: At least two axes.
    """
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def padded_rows(x: Tensor, columns: int = 8) -> Tensor:
    """Return ``x``'s values with unused memory, full of NaN, between the rows.

    Args:
        x: Floating point, at least one axis.
        columns: Unused elements after each row.
    """
    wide = torch.full((*x.shape[:-1], x.shape[-1] + columns), float("nan"), dtype=x.dtype, device=x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]
