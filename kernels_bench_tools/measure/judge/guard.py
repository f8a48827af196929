"""Integrity checks: does the time belong to the claimed work? They make further calls, which are not timed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.correctness.compare import is_plausible, some_slices
from kernels_bench_tools.measure.judge.bindings import (
    Bindings,
    Snapshot,
    find_background_work,
    is_idle_pool_thread,
    started_between,
    take_snapshot,
    thread_that_ran,
)
from kernels_bench_tools.measure.judge.memory import (
    active_modes,
    copy_elsewhere,
    lazy_reason,
    poison_memory,
    same_bits,
    storage_address,
)
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, size_in_bytes, tensors_of
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
REPEATS = 3
"""Calls with the same inputs before the first refill: unwritten memory is not correct three times."""
MIN_REFILLS, MAX_REFILLS = 2, 4
NOT_REFILLED = "its output did not follow inputs that were refilled in place"
ELSEWHERE = "its output is wrong for inputs at another address"
"""Says nothing of an implementation that is wrong anyway."""
_MODE_LEFT = "a mode that it left active intercepts torch's functions"
_KEPT_BYTES = 2**28
"""Of outputs, to find that one shares memory with any of them; at least two are kept."""
_SLICES = 3
"""Slices of a large output that are compared after a refill."""


class Guard:
    """Integrity checks of one process. Make it before the implementation is loaded. Each flag is returned once."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.reasons: dict[Flag, str] = {}
        """The flags found since the last ``inspect``, with a sentence each."""
        self._bindings = EARLY_BINDINGS[0] if EARLY_BINDINGS else Bindings()
        self._inspected = take_snapshot()
        self._modes = active_modes()

    def inspect(
        self, operator: Operator, workload: Workload, function: Callable[..., Any], inputs: Inputs
    ) -> list[Flag]:
        """Call ``function`` some ten times untimed, on copies of the inputs that change in place between calls.

        Returns ``lazy_output``, ``thread_injection``, ``aliased_output``, ``input_mutated``, ``stale_output`` or
        ``timer_tamper``.
        """
        self.reasons = {}
        # At new addresses, so that results cached by address are from here.
        working = tuple(copy_elsewhere(value) if isinstance(value, Tensor) else value for value in inputs)
        if self._is_plain(function(*working), inputs[0].device):
            calls = OBSERVED_CALLS + secrets.randbelow(3)
            if found := find_background_work(lambda: function(*working), calls):
                self._add(Flag.THREAD_INJECTION, found)
            self._check_refilled(operator, workload, function, inputs, working)
        self._inspected = take_snapshot()
        self._check_timers()
        return list(self.reasons)

    def finish(self, calls: int = 0) -> list[Flag]:
        """Check threads, processes and timers again, after timing; return ``thread_injection``, ``lazy_output``, ``timer_tamper``.

        ``calls`` is the number of timed calls.
        """
        before = set(self.reasons)
        now = take_snapshot()
        # Compiling again for the timed calls may start idle pool threads.
        working = {ident: n for ident, n in now.threads.items() if not is_idle_pool_thread(ident)}
        if started := started_between(self._inspected, Snapshot(working, now.children)):
            self._add(Flag.THREAD_INJECTION, f"timed calls started {started}, which outlived them")
        # It may be idle in other calls. Half of the calls decide the median; some packages' threads run every few seconds.
        elif working_thread := thread_that_ran(self._inspected, now, max(calls // 2, OBSERVED_CALLS)):
            self._add(Flag.THREAD_INJECTION, f"{working_thread} during {calls} timed calls")
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

    def _check_refilled(
        self,
        operator: Operator,
        workload: Workload,
        function: Callable[..., Any],
        source: Inputs,
        working: Inputs,
    ) -> None:
        """Call it on inputs that are refilled in place; compare outputs, addresses, and the inputs after each call.

        ``source`` is never passed to the implementation, ``working`` to every call.
        """
        # Addresses and outputs, which are kept alive so that their memory is not used again.
        seen: list[tuple[frozenset[int], Any]] = []
        refills = MIN_REFILLS + secrets.randbelow(MAX_REFILLS - MIN_REFILLS + 1)
        for number in range(-REPEATS, refills):
            if number >= 0:
                source = operator.inputs(workload, str(source[0].device), secrets.randbelow(2**31))
                pairs = zip(working, source, strict=True)
                if any(isinstance(one, Tensor) and one.shape != new.shape for one, new in pairs):
                    return  # the number of elements depends on the seed
            for value, new in zip(working, source, strict=True):
                if isinstance(value, Tensor):
                    value.copy_(new)
            for like in tensors_of(seen[-1][1]) if seen else source[:1]:
                poison_memory(like)
            output = function(*working)
            for position, (value, original) in enumerate(zip(working, source, strict=True)):
                fixed = isinstance(original, Tensor) and not operator.may_overwrite(position)
                if fixed and not same_bits(value, original):
                    self._add(Flag.INPUT_MUTATED, f"it changed its input number {position + 1}")
            only = None if number == -REPEATS else some_slices(operator, source, least=_SLICES)
            correct = is_plausible(output, operator, source, only)
            addresses = frozenset(filter(None, map(storage_address, tensors_of(output))))
            shared = {n for n, value in enumerate(working) if storage_address(value) in addresses}
            if not all(map(operator.may_overwrite, shared)):
                self._add(Flag.ALIASED_OUTPUT, "its output shares memory with an input")
            # A wrong output in the memory of an earlier one is stale instead.
            elif correct and number >= 0 and not shared and any(addresses & earlier for earlier, _ in seen):
                self._add(Flag.ALIASED_OUTPUT, "its output shares memory with an earlier one still in use")
            if not correct:
                self._add(Flag.STALE_OUTPUT, NOT_REFILLED if number >= 0 else ELSEWHERE)
                return
            if addresses:
                size = sum(map(size_in_bytes, tensors_of(output)))
                seen = [*seen[-max(1, _KEPT_BYTES // max(size, 1)) :], (addresses, output)]

    def _check_timers(self) -> None:
        if replaced := self._bindings.replaced():
            self._add(Flag.TIMER_TAMPER, f"replaced: {', '.join(replaced[:3])}")
