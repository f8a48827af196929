"""Inputs that change between timed calls, so that no result of an earlier call is right for a later one.

On a CPU a change exchanges elements all over each activation, so that nearly all of a call's work has to be done again,
and most of the cache stays as it was. On a GPU, whose caches are flushed after it, each activation begins at another
element, so that all of the work has to be done again. A change is defined by a number: a process that makes the same
inputs and applies the same changes has the inputs of every call. Parameters (weights, tables) stay as they are, as in a
model, and so do sorted integers, such as where rows begin. Where elements may not be anywhere, as in a matrix that has an
inverse, the operator makes new inputs (``renew``), or entries of a batch change places.

Between a change and its call no function in Python of other modules runs, and no method that an object may have of its own:
an implementation could replace one, and compute its output there.
"""

from __future__ import annotations

import secrets
from _random import Random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.judge.memory import copied
from kernels_bench_tools.measure.operator import Inputs, Operator
from kernels_bench_tools.measure.timing.seam import Given

COPIES_PER_TURN = 2
"""Copies on the device for each tensor that begins elsewhere."""
_MOST_EXCHANGED = 1024
"""Elements that a change exchanges with as many others; each is in another line of the cache."""
_ALIGNED_BYTES = 16
"""A tensor begins at a multiple of this many bytes, because other copies are slow."""
_LONG_ROW = 16
"""Fewest multiples of that in a row. With shorter rows, a tensor would often begin with a whole row, and results for rows
that were kept would be right; it then begins at any element."""


def new_change() -> int:
    """Return the number of a random change."""
    return 1 + secrets.randbelow(2**53 - 1)


class InputChanges(NamedTuple):
    """How the inputs of an operator change between timed calls."""

    positions: Sequence[int] = ()
    """Of the inputs that change."""
    rotate: bool = False
    """Whether tensors are new or begin at another element; else elements of a tensor are exchanged with others of it."""
    whole: Collection[int] = ()
    """Positions of those whose entries of the first axis keep their elements when they are rotated."""
    renew: Callable[[Inputs, torch.Generator], Inputs] | None = None

    @classmethod
    def of(
        cls, operator: Operator, inputs: Inputs, positions: Sequence[int], *, entries: bool = False
    ) -> InputChanges:
        """Return how these inputs of an operator change; ``entries``: if all have to keep those of their first axis."""
        whole, renew = positions if entries else operator.whole_rows, operator.renew
        on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in inputs)
        # A plain function, whatever the operator has.
        made = None if renew is None else lambda given, generator: renew(given, generator)
        return cls(positions, on_gpu or bool(whole) or renew is not None, whole, made)

    def apply(self, inputs: Inputs, numbers: Sequence[int]) -> Inputs:
        """Return what inputs are after the changes with these numbers, in order; may change ``inputs``."""
        if self.rotate:
            return self.rotated(inputs, numbers[-1])
        for number in numbers:
            self.exchange(inputs, number)
        return inputs

    def exchange(self, inputs: Inputs, number: int) -> None:
        """Exchange elements of each tensor that changes, chosen by ``number``; 0 changes nothing.

        The same change once more undoes it.
        """
        random = Random(number)  # both sides must get the same elements
        for position in self.positions if number else ():
            memory = _memory(inputs, position)
            size = memory.numel()
            half = size // 2
            count = min(_MOST_EXCHANGED, (half + 3) // 4)
            if not count:
                continue
            step = half // count
            reach = 1 + (count - 1) * step
            first = _below(random, half - reach + 1)
            second = half + _below(random, size - half - reach + 1)
            left, right = memory[first : first + reach : step], memory[second : second + reach : step]
            kept = left.clone()
            left.copy_(right)
            right.copy_(kept)

    def rotated(self, inputs: Inputs, number: int, into: Inputs | None = None) -> Inputs:
        """Return inputs whose tensors are new, or begin at another element, chosen by ``number``.

        They are written to ``into``, or to copies.
        """
        result = into or self.copies(inputs)
        if self.renew is not None:
            generator = torch.Generator(next(one.device for one in inputs if isinstance(one, Tensor)))
            renewed = self.renew(inputs, generator.manual_seed(number))
            for position in self.positions:
                Tensor.copy_(result[position], renewed[position])
            return result
        random = Random(number)  # both sides must get the same elements
        for position in self.positions:
            given, memory = _memory(inputs, position), _memory(result, position)
            size, (step, _) = given.numel(), self._steps(inputs, position)
            start = step * _below(random, max(size // step, 1))
            memory[: size - start].copy_(given[start:])
            memory[size - start :].copy_(given[:start])
        return result

    def _steps(self, inputs: Inputs, position: int) -> tuple[int, int]:
        """Return at multiples of how many elements a tensor may begin, and how many stay together: 0 for all."""
        value = tuple.__getitem__(inputs, position)
        row = value.numel() // max(value.shape[:1].numel(), 1) if position in self.whole else 0
        aligned = _ALIGNED_BYTES // value.element_size()
        together = (row or 1) if value.is_floating_point() or value.is_complex() else 0
        return row or (aligned if value.shape[-1:].numel() >= _LONG_ROW * aligned else 1), together

    def given(self, first: Inputs, second: Inputs, to: Inputs) -> list[Given]:
        """Return what makes the inputs of a sealed call on a GPU, from two sets of inputs.

        Each number is that of one of both sets, since there would be a table for every element at which a tensor may begin.
        Integers only begin elsewhere: of two permutations there would be none. What the operator renews is not made.
        """
        found = []
        for position in () if self.renew is not None else self.positions:
            memory = [_memory(inputs, position) for inputs in (first, second, to)]
            steps = (step * memory[0].element_size() for step in self._steps(first, position))
            found.append(Given(*memory, *steps))
        return found

    def copies(self, inputs: Inputs) -> Inputs:
        """Return inputs with copies of those that change."""
        return tuple(copied(value) if n in self.positions else value for n, value in enumerate(inputs))


def _below(random: Random, limit: int) -> int:
    return random.getrandbits(64) % limit


def _memory(inputs: Inputs, position: int) -> Tensor:
    """Return all elements of the memory of a plain tensor, among a plain tuple, as a flat tensor."""
    value = tuple.__getitem__(inputs, position)
    if type(value) not in (Tensor, Parameter):
        raise TypeError(f"input {position} is a {type(value).__name__}")
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(Tensor.untyped_storage(value))


class InputSets:
    """Sets of inputs that calls rotate through, and change before each call.

    ``overwritten`` are positions of inputs that calls may overwrite. Each call then gets copies of its own, and what
    ``prepare`` makes of them, such as a forward pass. That is code of the implementation, which must not know what the call
    will get: it runs in :meth:`make_ahead`, before the change is known, and its copies are filled afterwards, right before it.
    """

    def __init__(
        self,
        sets: Sequence[Inputs],
        changes: InputChanges = InputChanges(),  # noqa: B008 - cannot be changed
        *,
        overwritten: Sequence[int] = (),
        prepare: Callable[..., Inputs] = lambda *inputs: inputs,
    ) -> None:
        self._sets, self._changes, self._overwritten, self._prepare = sets, changes, overwritten, prepare
        self.repeatable = not overwritten
        """Whether a call can be repeated with the same arguments."""
        self._prepared = [] if overwritten else [prepare(*one) for one in sets]
        self._ahead: deque[tuple[Inputs, Inputs]] = deque()
        self._turn = 0
        self._originals = [changes.copies(one) for one in sets] if changes.rotate and not overwritten else []
        """The sets before any change, if theirs begin elsewhere."""
        self.copies = COPIES_PER_TURN * len(changes.positions)
        """Copies on a GPU before each call."""

    def __len__(self) -> int:
        """Return the number of sets."""
        return len(self._sets)

    @property
    def all(self) -> Sequence[Inputs]:
        """The arguments made of each set; of the first only, if those of each call are made right before it."""
        return self._prepared or [self.first]

    @property
    def first(self) -> Inputs:
        """The arguments made of the first set."""
        return self._prepared[0] if self._prepared else self.changed(0, 0)

    @property
    def renews(self) -> bool:
        """Whether the operator makes the changed inputs."""
        return self._changes.renew is not None

    def renewed(self) -> Inputs:
        """Return new inputs, made as for a change, that no call gets."""
        return self._changes.rotated(self._sets[0], new_change())

    def make_ahead(self, count: int, *, hot: bool = False) -> None:
        """Make the arguments of the following ``count`` calls, if each gets its own; ``hot``: of the first set."""
        self._ahead.clear()
        for number in range(count if self._overwritten else 0):
            self._ahead.append(self._made(0 if hot else (self._turn + number) % len(self._sets)))

    def _made(self, which: int) -> tuple[Inputs, Inputs]:
        """Return copies of a set, still empty where they change, and the arguments made of them."""
        copies = list(self._sets[which])
        for position in self._overwritten:
            made = torch.empty_like if position in self._changes.positions else torch.clone
            copies[position] = made(copies[position])
        return tuple(copies), self._prepare(*copies)

    def following(self, number: int) -> Inputs:
        """Return the arguments made of the next set in turn, after this change."""
        self._turn += 1
        return self.changed((self._turn - 1) % len(self._sets), number)

    def changed(self, which: int, number: int) -> Inputs:
        """Return the arguments made of a set after this change."""
        changes, own = self._changes, self._sets[which]
        if self._overwritten:
            copies, arguments = self._ahead.popleft() if self._ahead else self._made(which)
            self._change(which, copies, number)
            return arguments
        if not self._originals:
            changes.exchange(own, number)
        elif number:
            changes.rotated(self._originals[which], number, own)
        return self._prepared[which]

    def sealed(self, count: int, change: int) -> list[tuple[Any, Inputs]]:
        """Return, for each call of a queue on a GPU, what makes its inputs from the first two sets, and the arguments made of them.

        What the operator renews is as after ``change`` in all calls.
        """
        changes, two = self._changes, (self._originals or self._sets)[:2]
        found: list[tuple[Any, Inputs]] = []
        for _ in range(count if self._overwritten else 1):
            copies, arguments = self._sets[0], self._prepared[0] if self._prepared else ()
            if self._overwritten:
                copies, arguments = self._ahead.popleft() if self._ahead else self._made(0)
            if changes.renew is not None:
                changes.rotated(two[0], change, copies)
            found.append((changes.given(two[0], two[-1], copies), arguments))
        return found if self._overwritten else found * count

    def sealed_on_host(self, count: int) -> list[tuple[Callable[[int], None], Inputs]]:
        """Return, for each call of a queue on a CPU, what changes its inputs, given a number, and the arguments; sets take turns."""
        places = [(self._turn + number) % len(self._sets) for number in range(count)]
        own = {which: self._shared(which) for which in dict.fromkeys(places)}
        self._turn += count
        return [(partial(self._restore, which, own[which][0]), own[which][1]) for which in places]

    def again(self, keys: Sequence[int], number: int) -> Inputs:
        """Return the arguments of a call of the last queue on a CPU once more, whose changes were these; undoes those after it."""
        sets = len(self._sets)
        which = (self._turn - len(keys) + number) % sets
        copies, arguments = self._shared(which)
        if self._changes.rotate:
            self._restore(which, copies, keys[number])
        else:
            for later in reversed(keys[number + sets :: sets]):
                self._changes.exchange(self._sets[which], later)
            self._restore(which, copies, 0)
        return arguments

    def _shared(self, which: int) -> tuple[Inputs, Inputs]:
        """Return what all calls of a queue on a CPU with one set change, and the arguments made of it."""
        return self._made(which) if self._overwritten else (self._sets[which], self._prepared[which])

    def _restore(self, which: int, copies: Inputs, number: int) -> None:
        """Change a set, and make copies of it, which a call may have overwritten, what it is then."""
        self._change(which, copies, number)
        for position in self._overwritten:
            if position not in self._changes.positions:
                Tensor.copy_(copies[position], self._sets[which][position])

    def _change(self, which: int, copies: Inputs, number: int) -> None:
        """Change a set, and make copies of it what it is then."""
        own, changes = self._sets[which], self._changes
        if changes.rotate:
            changes.rotated(self._originals[which] if self._originals else own, number, copies)
            return
        changes.exchange(own, number)
        for position in changes.positions if copies is not own else ():
            Tensor.copy_(copies[position], own[position])

    def inputs(self, which: int) -> Inputs:
        """Return the inputs of a set as they are now."""
        return self._sets[which]
