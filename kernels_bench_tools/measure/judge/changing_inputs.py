"""Inputs that change between timed calls, so that no result of an earlier call is right for a later one.

On a CPU a change exchanges elements all over each activation, so that nearly all of a call's work has to be done again,
and most of the cache stays as it was. On a GPU, whose caches are flushed after it, each activation begins at another
element, so that all of the work has to be done again. A change is defined by a number: a process that makes the same
inputs and applies the same changes has the inputs of every call. Parameters (weights, tables) stay as they are, as in a
model.

Between a change and its call no function in Python of other modules runs, and no method that an object may have of its own:
an implementation could replace one, and compute its output there. ``tests/measure/test_input_sets.py`` looks for them.
"""

from __future__ import annotations

import secrets
from _random import Random
from collections import deque
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.judge.memory import copied
from kernels_bench_tools.measure.operator import Inputs, Operator

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


def turns(operator: Operator, inputs: Inputs) -> bool:
    """Return whether a change moves all elements of a tensor, instead of exchanging some."""
    return bool(operator.whole_rows) or any(isinstance(value, Tensor) and value.is_cuda for value in inputs)


def after(
    given: Inputs,
    positions: Sequence[int],
    numbers: Sequence[int],
    *,
    turn: bool,
    whole: Collection[int] = (),
) -> Inputs:
    """Return what inputs are after these changes, in order; ``turn`` as :func:`turns` says. May change ``given``."""
    if turn:
        return turned(given, positions, numbers[-1], whole=whole)
    for number in numbers:
        change(given, positions, number)
    return given


def change(inputs: Inputs, positions: Sequence[int], number: int) -> None:
    """Exchange elements of each tensor at ``positions``, chosen by ``number``; 0 changes nothing.

    The same change once more undoes it.
    """
    random = Random(number)  # both sides must get the same elements
    for position in positions if number else ():
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


def turned(
    inputs: Inputs,
    positions: Sequence[int],
    number: int,
    into: Inputs | None = None,
    *,
    whole: Collection[int] = (),
) -> Inputs:
    """Return inputs whose tensors at ``positions`` begin elsewhere, chosen by ``number``.

    They are written to ``into``, or to copies. Rows of those in ``whole`` keep their elements.
    """
    random = Random(number)  # both sides must get the same elements
    found = into or _copies(inputs, positions)
    for position in positions:
        given, memory = _memory(inputs, position), _memory(found, position)
        size, columns = given.numel(), _tensor(inputs, position).shape[-1:].numel()
        row = columns if position in whole else 0
        aligned = _ALIGNED_BYTES // given.element_size()
        step = row or (aligned if columns >= _LONG_ROW * aligned else 1)
        start = step * _below(random, max(size // step, 1))
        memory[: size - start].copy_(given[start:])
        memory[size - start :].copy_(given[:start])
    return found


def _below(random: Random, limit: int) -> int:
    return random.getrandbits(64) % limit


def _copies(inputs: Inputs, positions: Sequence[int]) -> Inputs:
    return tuple(copied(value) if n in positions else value for n, value in enumerate(inputs))


def _tensor(inputs: Inputs, position: int) -> Tensor:
    """Return a plain tensor among a plain tuple."""
    value = tuple.__getitem__(inputs, position)
    if type(value) not in (Tensor, Parameter):
        raise TypeError(f"input {position} is a {type(value).__name__}")
    return value


def _memory(inputs: Inputs, position: int) -> Tensor:
    """Return all elements of a tensor's memory as a flat tensor."""
    value = _tensor(inputs, position)
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(Tensor.untyped_storage(value))


class InputSets:
    """Sets of inputs that calls rotate through, and change before each call.

    ``turn`` is what :func:`turns` returns, ``whole`` is for :func:`turned`. ``overwritten`` are positions of inputs
    that calls may overwrite. Each call then gets copies of its own, and what ``prepare`` makes of them, such as a
    forward pass. That is code of the implementation, which must not know what the call will get: it runs in
    :meth:`make_ahead`, before the change is known, and its copies are filled afterwards. Tensors that begin elsewhere
    are copied right before the call, which fills the cache. Without them, the copies of a set are made some calls
    before its turn, so that they have left the cache by then.
    """

    def __init__(
        self,
        sets: Sequence[Inputs],
        positions: Sequence[int] = (),
        *,
        turn: bool = False,
        whole: Collection[int] = (),
        overwritten: Sequence[int] = (),
        prepare: Callable[..., Inputs] = lambda *inputs: inputs,
    ) -> None:
        self._sets, self._positions, self._overwritten = sets, positions, overwritten
        self._prepare, self._whole = prepare, whole
        self.repeatable = not overwritten
        """Whether a call can be repeated with the same arguments."""
        self._prepared = [] if overwritten else [prepare(*one) for one in sets]
        self._ahead: deque[tuple[Inputs, Inputs]] = deque()
        self._turn = 0
        self._ready = [self._filled(n) for n in range(len(sets))] if overwritten and not turn else []
        """For each set what its next call gets, apart from the change."""
        self._used: list[int] = []
        """The sets whose copies calls have overwritten, in order."""
        self._originals = [_copies(one, positions) for one in sets] if turn and not overwritten else []
        """The sets before any change, if theirs begin elsewhere."""
        self.copies = COPIES_PER_TURN * len(positions)
        """Copies on a GPU before each call."""

    def __len__(self) -> int:
        """Return the number of sets."""
        return len(self._sets)

    @property
    def all(self) -> Sequence[Inputs]:
        """The arguments made of each set; of the first only, if those of each call are made right before it."""
        return self._prepared or [arguments for _, arguments in self._ready] or [self.first]

    @property
    def first(self) -> Inputs:
        """The arguments made of the first set."""
        return self._prepared[0] if self._prepared else self.changed(0, 0)

    def make_ahead(self, count: int, *, hot: bool = False) -> None:
        """Make the arguments of the following ``count`` calls, if each gets its own; ``hot``: of the first set.

        Without tensors that begin elsewhere, at most as many calls as there are sets.
        """
        self._ahead.clear()
        if self._ready:
            for which in self._used:
                self._ready[which] = self._filled(which)
            self._used.clear()
        elif self._overwritten:
            turns = (0 if hot else self._turn + number for number in range(count))
            self._ahead.extend(self._made(turn % len(self._sets)) for turn in turns)

    def _made(self, which: int) -> tuple[Inputs, Inputs]:
        """Return copies of a set, still empty where they change, and the arguments made of them."""
        copies = list(self._sets[which])
        for position in self._overwritten:
            made = torch.empty_like if position in self._positions else torch.clone
            copies[position] = made(copies[position])
        return tuple(copies), self._prepare(*copies)

    def _filled(self, which: int) -> tuple[Inputs, Inputs]:
        """Return copies of a set, and the arguments made of them."""
        copies, arguments = self._made(which)
        for position in self._positions:
            copies[position].copy_(self._sets[which][position])
        return copies, arguments

    def following(self, number: int) -> Inputs:
        """Return the arguments made of the next set in turn, after this change."""
        self._turn += 1
        return self.changed((self._turn - 1) % len(self._sets), number)

    def changed(self, which: int, number: int) -> Inputs:
        """Return the arguments made of a set after this change."""
        if self._ready:
            if which in self._used:
                self._ready[which] = self._filled(which)
            else:
                self._used.append(which)
            change(self._sets[which], self._positions, number)
            copies, arguments = self._ready[which]
            change(copies, self._positions, number)
            return arguments
        if self._overwritten:
            copies, arguments = self._ahead.popleft() if self._ahead else self._made(which)
            turned(self._sets[which], self._positions, number, into=copies, whole=self._whole)
            return arguments
        if not self._originals:
            change(self._sets[which], self._positions, number)
        elif number:
            turned(self._originals[which], self._positions, number, into=self._sets[which], whole=self._whole)
        return self._prepared[which]

    def inputs(self, which: int) -> Inputs:
        """Return the inputs of a set as they are now."""
        return self._sets[which]
