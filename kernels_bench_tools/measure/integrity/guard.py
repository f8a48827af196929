"""Does a time belong to the work it claims? Asked by calls beside the timed ones.

Every check answers to a way in which a measurement was gamed, or went wrong by honest mistake.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from kernels_bench_tools.measure.correctness.compare import is_plausible
from kernels_bench_tools.measure.integrity.fingerprint import elsewhere, fingerprint, same_bits
from kernels_bench_tools.measure.integrity.outputs import active_modes, memory_of, why_lazy
from kernels_bench_tools.measure.integrity.poison import poison_memory
from kernels_bench_tools.measure.integrity.tampering import Bindings
from kernels_bench_tools.measure.integrity.threads import (
    Census,
    find_injection,
    newcomers,
    take_census,
    waits_for_work,
)
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, tensors_of
from kernels_bench_tools.schema.record import Flag

TRUST = (
    "Checked: plain outputs that follow inputs refilled in place, unchanged inputs, poisoned memory, "
    "timed outputs, threads, timers. Not seen: native code that alters timers, driver or judge in memory."
)
"""For ``Record.trust``."""

OBSERVED_CALLS = 5
REPEATS = 3
"""Calls with the same inputs before the first refill: memory left unwritten is not right three times."""
MIN_REFILLS, MAX_REFILLS = 2, 4
_PIECES = 3
"""Parts of a large output that are compared after a refill; correctness looked at all of them."""


@dataclass
class _Subject:
    """One implementation on one workload."""

    operator: Operator
    workload: Workload
    function: Callable[..., Any]
    inputs: Inputs
    """Never given to the implementation."""
    working: Inputs
    """Given to every call, refilled in place."""
    seen: list[tuple[frozenset[int], Any]] = field(default_factory=list)
    """Addresses and outputs; these are kept alive, so that memory used twice is memory shared."""


class Guard:
    """Watches one process's implementation. Make it before the implementation is loaded.

    Each flag is returned once, by the check that found it.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.reasons: dict[Flag, str] = {}
        """What was found since the last ``inspect``: a sentence for each flag."""
        self._bindings = Bindings()
        self._inspected = take_census()
        self._modes = active_modes()
        self._right = True
        self._remembered: list[tuple[Inputs, list[int]]] = []

    def inspect(
        self, operator: Operator, workload: Workload, function: Callable[..., Any], inputs: Inputs
    ) -> list[Flag]:
        """Call ``function`` some ten times untimed, on inputs that change in place between calls.

        Args:
            operator: What it implements.
            workload: Whose size the inputs have.
            function: The implementation.
            inputs: The workload's inputs; copied, never passed on.

        Returns:
            What was found: ``lazy_output``, ``thread_injection``, ``aliased_output``, ``input_mutated``,
            ``stale_output``, ``timer_tamper``.
        """
        self.reasons, self._right, self._remembered = {}, True, []
        # At addresses that no call has seen, so that what it remembers of addresses is from here.
        working = tuple(elsewhere(value) if isinstance(value, Tensor) else value for value in inputs)
        subject = _Subject(operator, workload, function, inputs, working)
        if self._is_plain(function(*working), inputs):
            self._look_for_threads(subject)
            self._look_at_outputs(subject)
        self._inspected = take_census()
        self._look_at_timers()
        return list(self.reasons)

    def remember(self, input_sets: Sequence[Inputs]) -> None:
        """Note the bits of the inputs of timed calls, which ``check_outputs`` then expects unchanged."""
        self._remembered = [(inputs, _fingerprints(inputs)) for inputs in input_sets]

    def check_outputs(self, operator: Operator, kept: Iterable[tuple[Inputs, Any]]) -> list[Flag]:
        """Compare outputs of timed calls with the reference, all of each.

        An implementation that is wrong anyway gets no flag for being as wrong when timed.

        Args:
            operator: What was called.
            kept: Inputs of a call as they were before it, and what it returned. An operator that works in
                place needs copies.

        Returns:
            ``stale_output`` if one is wrong, ``lazy_output``, and ``input_mutated`` if inputs that were
            remembered changed.
        """
        before = set(self.reasons)
        for inputs, bits in self._remembered:
            if _changed(operator, bits, _fingerprints(inputs)):
                self._add(Flag.INPUT_MUTATED, "a timed call changed its inputs")
        # Where memory is shared or inputs are overwritten, a later call has changed what this one left.
        overwritten = self.reasons.keys() & {Flag.INPUT_MUTATED, Flag.ALIASED_OUTPUT}
        for inputs, output in kept:
            if not self._is_plain(output, inputs) or not self._right or overwritten:
                continue
            if not is_plausible(output, operator, inputs):
                self._add(Flag.STALE_OUTPUT, "the output of a timed call was wrong, and untimed ones right")
        return [flag for flag in self.reasons if flag not in before]

    def finish(self) -> list[Flag]:
        """Look once more at threads, processes and timers. Call it after timing.

        Returns:
            ``thread_injection`` or ``timer_tamper`` if found only now.
        """
        before = set(self.reasons)
        now = take_census()
        # Compiling anew for the timed calls may start a pool's threads; they wait.
        working = frozenset(ident for ident in now.threads if not waits_for_work(ident))
        found = newcomers(self._inspected, Census(working, now.children))
        if found:
            self._add(Flag.THREAD_INJECTION, f"timed calls started {found}, which outlived them")
        self._look_at_timers()
        return [flag for flag in self.reasons if flag not in before]

    def _add(self, flag: Flag, reason: str) -> None:
        self.reasons.setdefault(flag, reason)

    def _is_plain(self, output: Any, inputs: Inputs) -> bool:
        device = inputs[0].device
        reason = next(filter(None, (why_lazy(value, device) for value in tensors_of(output))), "")
        if not reason and active_modes() > self._modes:
            reason = "a mode that it left active intercepts torch's functions"
        if reason:
            self._add(Flag.LAZY_OUTPUT, reason)
        return not reason

    def _look_for_threads(self, subject: _Subject) -> None:
        calls = OBSERVED_CALLS + secrets.randbelow(3)
        found = find_injection(lambda: subject.function(*subject.working), calls)
        if found:
            self._add(Flag.THREAD_INJECTION, found)

    def _look_at_outputs(self, subject: _Subject) -> None:
        refills = MIN_REFILLS + secrets.randbelow(MAX_REFILLS - MIN_REFILLS + 1)
        source = subject.inputs
        for number in range(-REPEATS, refills):
            if number >= 0:
                seed = secrets.randbelow(2**31)
                source = subject.operator.inputs(subject.workload, str(source[0].device), seed)
            _refill(subject.working, source)
            output = self._call(subject, source)
            # All of the first: whoever is wrong there is incorrect, and later not held to be stale.
            choose = None if number == -REPEATS else _some_pieces(subject.operator, source)
            right = is_plausible(output, subject.operator, source, choose)
            self._look_at_memory(subject, output, right=right and number >= 0)
            if number < 0:
                self._right = self._right and right
            elif self._right and not right:
                self._add(Flag.STALE_OUTPUT, "its output did not follow inputs that were refilled in place")
                return
            if _places(output):
                subject.seen[:] = [*subject.seen[-1:], (_places(output), output)]

    def _call(self, subject: _Subject, source: Inputs) -> Any:
        for like in tensors_of(subject.seen[-1][1]) if subject.seen else source[:1]:
            poison_memory(like)
        output = subject.function(*subject.working)
        for number, (value, original) in enumerate(zip(subject.working, source, strict=True)):
            allowed = number in subject.operator.in_place or not isinstance(original, Tensor)
            if not allowed and not same_bits(value, original):
                self._add(Flag.INPUT_MUTATED, f"it changed its input number {number + 1}")
        return output

    def _look_at_memory(self, subject: _Subject, output: Any, *, right: bool) -> None:
        places, in_place = _places(output), subject.operator.in_place
        if not places:
            return
        shared = {number for number, value in enumerate(subject.working) if memory_of(value) in places}
        if shared - set(in_place):
            self._add(Flag.ALIASED_OUTPUT, "its output shares memory with an input")
        # A wrong output in an earlier one's memory is a kept result: stale.
        elif right and not shared and any(places & earlier for earlier, _ in subject.seen):
            self._add(Flag.ALIASED_OUTPUT, "its output shares memory with an earlier one still in use")

    def _look_at_timers(self) -> None:
        replaced = self._bindings.replaced()
        if replaced:
            self._add(Flag.TIMER_TAMPER, f"replaced: {', '.join(replaced[:3])}")


def _places(output: Any) -> frozenset[int]:
    """Return the addresses of the outputs' memory, of those that have any."""
    return frozenset(filter(None, map(memory_of, tensors_of(output))))


def _some_pieces(operator: Operator, inputs: Inputs) -> Callable[[int], bool]:
    """Return a choice of pieces: the last, and some at random."""
    count = sum(1 for _ in operator.pieces(inputs))
    chosen = {count - 1, *(secrets.randbelow(count) for _ in range(_PIECES - 1))}
    return chosen.__contains__


def _refill(working: Inputs, source: Inputs) -> None:
    for value, new in zip(working, source, strict=True):
        if isinstance(value, Tensor):
            value.copy_(new)


def _fingerprints(inputs: Inputs) -> list[int]:
    return [fingerprint(value) if isinstance(value, Tensor) else 0 for value in inputs]


def _changed(operator: Operator, before: list[int], after: list[int]) -> bool:
    pairs = enumerate(zip(before, after, strict=True))
    return any(old != new for number, (old, new) in pairs if number not in operator.in_place)
