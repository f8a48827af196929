"""Which rank of how many a module is constructed for; the functions have vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_RANK_AND_SIZE: ContextVar[tuple[int, int]] = ContextVar("rank_and_size", default=(0, 1))


@contextmanager
def tensor_parallel(rank: int, size: int) -> Iterator[None]:
    """Construct modules for one rank of ``size``; raise ``ValueError`` if there is no such rank.

    Without ``torch.distributed`` the rank is simulated: nothing is summed over ranks.
    """
    if not 0 <= rank < size:
        raise ValueError(f"there is no rank {rank} of {size}")
    token = _RANK_AND_SIZE.set((rank, size))
    try:
        yield
    finally:
        _RANK_AND_SIZE.reset(token)


def get_tensor_model_parallel_rank() -> int:
    return _RANK_AND_SIZE.get()[0]


def get_tensor_model_parallel_world_size() -> int:
    return _RANK_AND_SIZE.get()[1]


def divide(numerator: int, denominator: int) -> int:
    """Return the quotient; raise ``ValueError`` if there is a remainder."""
    if numerator % denominator:
        raise ValueError(f"{numerator} is not a multiple of {denominator}")
    return numerator // denominator
