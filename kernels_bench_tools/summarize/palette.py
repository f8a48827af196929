"""Colours and markers that an implementation keeps in every chart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00", "#F0E442")
"""Okabe and Ito's, told apart by colour-blind readers; black is left out, being the ink."""
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "*", "h", "<")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)))

FAMILIES = ("torch", "hf-kernels", "triton", "torch-compile", "liger", "xformers")
"""Each has the colour and marker of its place here; a new family is added at the end."""

_SLOTS = len(COLOURS) * len(DASHES)


class Style(NamedTuple):
    """How a line is drawn."""

    colour: str
    marker: str
    dashes: str | tuple[float, tuple[float, ...]]


def style(slot: int) -> Style:
    """Return the style with this number; the first 28 all differ in colour or dashes."""
    return Style(
        colour=COLOURS[slot % len(COLOURS)],
        marker=MARKERS[slot % len(MARKERS)],
        dashes=DASHES[slot // len(COLOURS) % len(DASHES)],
    )


def assign_styles(families: Mapping[str, str]) -> dict[str, Style]:
    """Return a style for each implementation, no two alike as long as there are styles left.

    The first implementation of a known family has the family's style, the same for every operator.
    Others have one that follows from their id, or the next free one.

    Args:
        families: Implementation id to family.
    """
    slots: dict[str, int] = {}
    for implementation, family in sorted(families.items()):
        if family in FAMILIES and FAMILIES.index(family) not in slots.values():
            slots[implementation] = FAMILIES.index(family)
    for implementation in sorted(families.keys() - slots.keys()):
        slots[implementation] = _free_slot(implementation, slots.values())
    return {implementation: style(slot) for implementation, slot in slots.items()}


def _free_slot(implementation: str, taken: Iterable[int]) -> int:
    used = set(taken)
    start = int.from_bytes(hashlib.sha256(implementation.encode()).digest()[:4], "big")
    # A solid line in a colour of its own reads better than a dashed one in another's.
    for size, first in ((len(COLOURS), 0), (_SLOTS, 0)):
        for step in range(size):
            slot = first + (start + step) % size
            if slot not in used:
                return slot
    return start % _SLOTS
