"""What is written below the horizontal axis: the workloads, so that they do not overlap. Sizes are inches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kernels_bench_tools.schema.summary import WorkloadSummary
from kernels_bench_tools.summarize.workloads import labels

DIGIT = 0.08
"""Width of a digit of the measuring font at 9.5 points, on average."""
_LINE = 0.17
_TILT, _LONGEST_TILTED = 60, 26
_TILTED_LINE = 0.26
"""What a tilted line takes beside its rise: its own thickness, and the room above it."""


class Ticks(NamedTuple):
    """How the workloads of a panel are written."""

    texts: list[str]
    axis: str
    tilted: bool
    height: float
    """From the axis to the lower end of the labels."""


def printable(text: str) -> str:
    """Return ``text`` without the characters that XML and terminals cannot show."""
    return "".join(char for char in text if char.isprintable())


def ticks(workloads: Sequence[WorkloadSummary], slot: float) -> Ticks:
    """Return the workloads' labels on one line where they fit, else on several, else tilted.

    Args:
        workloads: At least one.
        slot: Room for each of them.
    """
    named = labels(workloads)
    texts, axis = [printable(text) for text in named.ticks], printable(named.axis)
    room = slot / DIGIT - 1
    if max(map(len, texts)) <= room:
        return Ticks(texts, axis, tilted=False, height=_LINE)
    stacked = [text.replace(" × ", "\n× ") for text in texts]
    lines = [text.split("\n") for text in stacked]
    if max(len(line) for text in lines for line in text) <= room:
        return Ticks(stacked, axis, tilted=False, height=_LINE * max(map(len, lines)))
    tight = [text.replace(" × ", "×") for text in texts]
    cut = [text if len(text) <= _LONGEST_TILTED else f"{text[: _LONGEST_TILTED - 1]}…" for text in tight]
    rise = math.sin(math.radians(_TILT))
    return Ticks(cut, axis, tilted=True, height=max(map(len, cut)) * DIGIT * rise + _TILTED_LINE)


def draw_ticks(axes: Any, found: Ticks) -> None:
    """Write the workloads below the axis."""
    tilt = {"rotation": _TILT, "ha": "right", "rotation_mode": "anchor"} if found.tilted else {}
    axes.set_xticks(range(len(found.texts)), found.texts, **tilt)
    axes.set_xlim(-0.4, len(found.texts) - 0.6)
    axes.set_xlabel(found.axis, alpha=0.9)
