"""Inputs that change between timed calls, so that no result of an earlier call is right for a later one.

A change exchanges two parts of each activation; on a CPU elements all over it, so that nearly all of a call's work
has to be done again. It follows from a number: who makes the same inputs and applies the same changes knows the inputs
of every call. Parameters (weights, tables) stay as they are, as in a model.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import Inputs

COPIES_PER_CHANGE, COPIES_PER_TURN = 3, 2
"""Copies on the device for each tensor that changes."""
_MOST_ELEMENTS = 4096
_MOST_SPREAD = 1024
"""Elements of each part on a CPU, where each is in another line of the cache."""


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
        # On a GPU only what is contiguous is exchanged by plain copies, which the timer knows to be ours.
        count = min(_MOST_ELEMENTS if memory.is_cuda else _MOST_SPREAD, (half + 3) // 4)
        if not count:
            continue
        step = 1 if memory.is_cuda else half // count
        reach = 1 + (count - 1) * step
        first = random.randrange(half - reach + 1)
        second = random.randrange(half, len(memory) - reach + 1)
        left, right = memory[first : first + reach : step], memory[second : second + reach : step]
        kept = left.clone()
        left.copy_(right)
        right.copy_(kept)


def turned(inputs: Inputs, positions: Sequence[int], number: int, into: Inputs | None = None) -> Inputs:
    """Return inputs whose tensors at ``positions`` begin elsewhere, at an element chosen by ``number``.

    They are written to ``into``, or to copies.
    """
    random = Random(number)  # noqa: S311 - both sides must get the same elements
    found = into or tuple(value.clone() if n in positions else value for n, value in enumerate(inputs))
    for position in positions:
        given, memory = _memory(inputs[position]), _memory(found[position])
        start = random.randrange(len(given)) if len(given) else 0
        memory[: len(given) - start].copy_(given[start:])
        memory[len(given) - start :].copy_(given[:start])
    return found


def _memory(value: Tensor) -> Tensor:
    """Return all elements of a tensor's memory as a flat tensor."""
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())


class InputSets:
    """Sets of inputs that calls rotate through, and change before each call.

    ``overwritten`` are positions of inputs that calls may overwrite. Each call then gets copies of its own, and what
    ``prepare`` makes of them, such as a forward pass. That is code of the implementation, which must not know what
    the call will get: its copies are filled right before it, with tensors that begin elsewhere.
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
        self._prepare = prepare
        self.repeatable = not overwritten
        """Whether a call can be repeated with the same arguments."""
        self._prepared = [] if overwritten else [prepare(*one) for one in sets]
        self._ahead: deque[tuple[Inputs, Inputs]] = deque()
        self._turn = 0
        self.copies = (COPIES_PER_TURN if overwritten else COPIES_PER_CHANGE) * len(positions)
        """Copies on the device before each call."""

    @property
    def all(self) -> Sequence[Inputs]:
        """The arguments made of each set; of the first only, if those of each call are made right before it."""
        return self._prepared or [self.first]

    @property
    def first(self) -> Inputs:
        """The arguments made of the first set."""
        return self._prepared[0] if self._prepared else self.changed(0, 0)

    def make_ahead(self, count: int) -> None:
        """Make the arguments of the following ``count`` calls, if each gets its own."""
        self._ahead.clear()
        if self._overwritten:
            turns = range(self._turn, self._turn + count)
            self._ahead.extend(self._made(turn % len(self._sets)) for turn in turns)

    def _made(self, which: int) -> tuple[Inputs, Inputs]:
        """Return copies of a set, still empty where they change, and the arguments made of them."""
        copies = list(self._sets[which])
        for position in self._overwritten:
            made = torch.empty_like if position in self._positions else torch.clone
            copies[position] = made(copies[position])
        return tuple(copies), self._prepare(*copies)

    def following(self, number: int) -> Inputs:
        """Return the arguments made of the next set in turn, after this change."""
        self._turn += 1
        made = self._ahead.popleft() if self._ahead else None
        return self.changed((self._turn - 1) % len(self._sets), number, made)

    def changed(self, which: int, number: int, made: tuple[Inputs, Inputs] | None = None) -> Inputs:
        """Return the arguments made of a set after this change."""
        if not self._overwritten:
            change(self._sets[which], self._positions, number)
            return self._prepared[which]
        copies, arguments = made or self._made(which)
        turned(self._sets[which], self._positions, number, into=copies)
        return arguments

    def inputs(self, which: int) -> Inputs:
        """Return the inputs of a set as they are now."""
        return self._sets[which]
