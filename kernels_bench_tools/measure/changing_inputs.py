"""Inputs that change between timed calls, so that no result of an earlier call is right for a later one.

A change exchanges two parts of each activation. It follows from a number: who makes the same inputs and applies the
same changes knows the inputs of every call. Parameters (weights, tables) stay as they are, as in a model.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import Inputs

COPIES_PER_CHANGE = 3
"""Copies on the device for each tensor that changes."""
_MOST_ELEMENTS = 4096


def new_change() -> int:
    """Return the number of a random change."""
    return 1 + secrets.randbelow(2**53 - 1)


def change(inputs: Inputs, positions: Sequence[int], number: int) -> None:
    """Exchange two parts of each tensor at ``positions``, chosen by ``number``; 0 changes nothing.

    The same change once more undoes it.
    """
    random = Random(number)  # noqa: S311 - both sides must get the same parts
    for position in positions if number else ():
        memory = _memory(inputs[position])
        half = len(memory) // 2
        count = min(_MOST_ELEMENTS, (half + 3) // 4)
        if not count:
            continue
        first = random.randrange(half - count + 1)
        second = random.randrange(half, len(memory) - count + 1)
        left, right = memory[first : first + count], memory[second : second + count]
        kept = left.clone()
        left.copy_(right)
        right.copy_(kept)


def _memory(value: Tensor) -> Tensor:
    """Return all elements of a tensor's memory as a flat tensor."""
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())


class InputSets:
    """Sets of inputs that calls rotate through, and change before each call.

    ``overwritten`` are positions of inputs that calls may overwrite: they are copied again before each call.
    """

    def __init__(
        self,
        sets: Sequence[Inputs],
        positions: Sequence[int] = (),
        *,
        overwritten: Sequence[int] = (),
        prepare: Callable[..., Inputs] = lambda *inputs: inputs,
    ) -> None:
        self._sets, self._positions, self._overwritten = sets, positions, overwritten
        self._working = [
            tuple(value.clone() if n in overwritten else value for n, value in enumerate(one)) for one in sets
        ]
        self._prepared = [prepare(*one) for one in self._working]
        self._turn = 0
        self.copies = COPIES_PER_CHANGE * len(positions) + len(overwritten)
        """Copies on the device before each call."""

    @property
    def all(self) -> Sequence[Inputs]:
        """The arguments made of each set."""
        return self._prepared

    @property
    def first(self) -> Inputs:
        """The arguments made of the first set."""
        return self._prepared[0]

    def following(self, number: int) -> Inputs:
        """Return the arguments made of the next set in turn, after this change."""
        self._turn += 1
        return self.changed((self._turn - 1) % len(self._sets), number)

    def changed(self, which: int, number: int) -> Inputs:
        """Return the arguments made of a set after this change."""
        change(self._sets[which], self._positions, number)
        for position in self._overwritten:
            self._working[which][position].copy_(self._sets[which][position])
        return self._prepared[which]

    def inputs(self, which: int) -> Inputs:
        """Return the inputs of a set as they are now."""
        return self._sets[which]
