"""Values grouped by a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order.

    >>> grouped((len(word), word) for word in ("norm", "mask", "rotary"))
    {4: ['norm', 'mask'], 6: ['rotary']}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
