"""Colours and markers that an implementation keeps in every chart."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00", "#8A6FDF", "#8C6D31")
"""Okabe and Ito's, which colour-blind readers can distinguish, without black, the colour of text, and yellow, which is
invisible on white; a violet and a brown instead, which markers and dashes distinguish."""
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "*", "h", "<", "X", ">", "d")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)))

FAMILIES = (
    *("torch", "hf-kernels", "triton", "torch-compile", "liger", "xformers"),
    *("flash-attn", "quack", "fla", "sageattention", "flex-attention"),
)
"""Each has the colour and marker of its place here; a new family is added at the end."""

_SLOTS = len(COLOURS) * len(DASHES)


class Style(NamedTuple):
    colour: str
    marker: str
    dashes: str | tuple[float, tuple[float, ...]]


_STYLES = [
    Style(COLOURS[slot % len(COLOURS)], MARKERS[slot % len(MARKERS)], DASHES[slot // len(COLOURS)])
    for slot in range(_SLOTS)
]


def assign_styles(
    families: Mapping[str, str],
    together: Collection[Collection[str]] | None = None,
    first: Collection[str] = (),
) -> dict[str, Style]:
    """Return a style for each implementation, no two of a panel alike as long as there are styles left.

    Of the implementations of a known family in one panel, the first has the family's style, the same for every
    operator, and others its colour with other dashes and another marker. The rest have a style that follows from
    their id, or the next free one. ``first`` come before others of their family: the baselines.
    """
    panels = [families.keys()] if together is None else together
    slots: dict[str, int] = {}

    def taken(implementation: str) -> set[int]:
        peers = {peer for panel in panels if implementation in panel for peer in panel}
        return {slots[peer] for peer in peers if peer in slots}

    for implementation in sorted(families, key=lambda it: (it not in first, it)):
        family = families[implementation]
        if family in FAMILIES and FAMILIES.index(family) not in taken(implementation):
            slots[implementation] = FAMILIES.index(family)
    for implementation in sorted(families.keys() - slots.keys()):
        slots[implementation] = _free_slot(implementation, families[implementation], taken(implementation))
    return {implementation: _STYLES[slot] for implementation, slot in slots.items()}


def _free_slot(implementation: str, family: str, taken: Collection[int]) -> int:
    start = int.from_bytes(hashlib.sha256(implementation.encode()).digest()[:4], "big")
    # A solid line in a colour of its own reads better than a dashed one in another's.
    slots = [(start + step) % size for size in (len(COLOURS), _SLOTS) for step in range(size)]
    if family in FAMILIES:
        slots = [*range(FAMILIES.index(family) % len(COLOURS), _SLOTS, len(COLOURS)), *slots]
    return next((slot for slot in slots if slot not in taken), start % _SLOTS)
