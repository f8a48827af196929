"""Integrity checks: does the time belong to the claimed work? They make further calls, which are not timed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch

from kernels_bench_tools.measure.judge.bindings import (
    Bindings,
    find_background_work,
    started_between,
    take_snapshot,
    thread_that_ran,
    without_idle,
)
from kernels_bench_tools.measure.judge.memory import (
    active_modes,
    copied,
    lazy_reason,
    storage_address,
)
from kernels_bench_tools.measure.operator import Inputs, Operator, size_in_bytes, tensors_of
from kernels_bench_tools.records.record import Flag

TRUST = (
    "Checked: outputs, also of timed calls, are plain tensors that follow changed inputs; memory poisoned with NaN; "
    "unchanged inputs; threads; timers. Not detected: native code that alters timers, driver or checks."
)
"""For ``Record.trust``."""

PACKAGES = {
    "": "",
    "uv": "The judge's packages are kbt's own.",
    "current": "The judge's packages are those of the cell: of the user's interpreter.",
}
"""For the same, by the kind of environment."""

EARLY_BINDINGS: list[Bindings] = []
"""Those from before the cell's script ran, if it was started by :mod:`.start`."""
OBSERVED_CALLS = 5
_MODE_LEFT = "a mode that it left active intercepts torch's functions"
_KEPT_BYTES = 2**28
"""Of outputs, to find that one shares memory with another; at least two are kept."""
_MOST_KEPT = 8


class Guard:
    """Integrity checks of one process. Make it before the implementation is loaded. Each flag is returned once."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.reasons: dict[Flag, str] = {}
        """The flags found since the last ``inspect``, with a sentence each."""
        self._bindings = EARLY_BINDINGS[0] if EARLY_BINDINGS else Bindings()
        self._inspected = self._began = take_snapshot()
        self._modes = active_modes()

    def inspect(self, operator: Operator, function: Callable[..., Any], inputs: Inputs) -> list[Flag]:
        """Call ``function`` some ten times untimed, on a copy of the inputs.

        Returns ``lazy_output``, ``thread_injection``, ``aliased_output`` or ``timer_tamper``.
        """
        self.reasons = {}
        working = tuple(map(copied, inputs))
        first = function(*working)
        if self._is_plain(first, inputs[0].device):
            calls = OBSERVED_CALLS + secrets.randbelow(3)
            if found := find_background_work(lambda: function(*working), calls):
                self._add(Flag.THREAD_INJECTION, found)
            size = sum(map(size_in_bytes, tensors_of(first)))
            count = max(1, min(_MOST_KEPT, _KEPT_BYTES // max(size, 1)))
            self._check_memory(operator, [first, *(function(*working) for _ in range(count))], working)
        self._inspected = self._began = take_snapshot()
        self._check_timers()
        return list(self.reasons)

    def begin(self) -> None:
        """Note how long threads have run, before timing: compiling for the timed calls is no work of theirs."""
        self._began = take_snapshot()

    def finish(self, calls: int = 0, ms: float = inf) -> list[Flag]:
        """Check threads, processes and timers again, after timing; return ``thread_injection``, ``lazy_output``, ``timer_tamper``.

        ``calls`` is the number of timed calls, ``ms`` their time together where they run on a CPU.
        """
        before, now = set(self.reasons), take_snapshot()
        # Compiling again for the timed calls may start idle pool threads.
        if started := started_between(self._inspected, without_idle(now)):
            self._add(Flag.THREAD_INJECTION, f"timed calls started {started}, which outlived them")
        elif found := thread_that_ran(self._began, now, calls, ms):
            self._add(Flag.THREAD_INJECTION, found)
        if active_modes() > self._modes:
            self._add(Flag.LAZY_OUTPUT, _MODE_LEFT)
        self._check_timers()
        return [flag for flag in self.reasons if flag not in before]

    def _add(self, flag: Flag, reason: str) -> None:
        self.reasons.setdefault(flag, reason)

    def _is_plain(self, output: Any, device: torch.device) -> bool:
        lazy = (lazy_reason(value, device) for value in tensors_of(output))
        reason = next(filter(None, lazy), _MODE_LEFT if active_modes() > self._modes else "")
        if reason:
            self._add(Flag.LAZY_OUTPUT, reason)
        return not reason

    def _check_memory(self, operator: Operator, outputs: Sequence[Any], inputs: Inputs) -> None:
        """Look for outputs, all of them still in use, that share memory with an input or with each other."""
        places = [frozenset(filter(None, map(storage_address, tensors_of(one)))) for one in outputs]
        known = frozenset[int]().union(*places)
        shared = [number for number, value in enumerate(inputs) if storage_address(value) in known]
        if not all(map(operator.may_overwrite, shared)):
            self._add(Flag.ALIASED_OUTPUT, "its output shares memory with an input")
        elif not shared and sum(map(len, places)) > len(known):
            self._add(Flag.ALIASED_OUTPUT, "its output shares memory with an earlier one still in use")

    def _check_timers(self) -> None:
        if replaced := self._bindings.replaced():
            self._add(Flag.TIMER_TAMPER, f"replaced: {', '.join(replaced[:3])}")
