"""Calls of one function on sets of inputs that change before each call, in the process that has the function.

Batches are timed here. How many, and which outputs are looked at, is decided by :mod:`.batches`, which may run in
another process: an implementation cannot know it before the calls are over.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter_ns
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.judge.changing_inputs import InputSets
from kernels_bench_tools.measure.operator import Inputs, size_in_bytes, tensors_of
from kernels_bench_tools.measure.timing.caches import calls_at_once
from kernels_bench_tools.measure.timing.cpu import CoreWaits, Waiting, cache_state
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.sampling import Call
from kernels_bench_tools.records.record import CacheState, Milliseconds

# Bound before an implementation can replace them.
_synchronize = torch.cuda.synchronize
_collect, _stop_collecting = gc.enable, gc.disable


class Method(StrEnum):
    EVENTS = "events"
    KERNELS = "kernels"
    HOT_EVENTS = "hot_events"
    HOT_KERNELS = "hot_kernels"
    HOST_SUBMIT = "host_submit"
    CLOCK = "clock"
    """By the host's clock, for the CPU."""

    @property
    def hot(self) -> bool:
        """Whether all calls of a batch have the same inputs, which change between batches."""
        return self in {Method.HOT_EVENTS, Method.HOT_KERNELS, Method.HOST_SUBMIT}


_CLOCK = Method.CLOCK  # Python 3.11 looks members up by a function in Python


@dataclass(frozen=True)
class TimerState:
    cache: CacheState
    at_once: Annotated[int, Meta(ge=1)]
    """Calls of a batch whose outputs fit into memory."""
    submit_ms: Milliseconds = 0.0
    """Approximate host time to issue one call."""
    idle_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Idle time before each call."""
    repeatable: bool = True
    """Whether a call can be repeated with the same arguments, for hot calls."""


@dataclass(frozen=True)
class Timed:
    calls: list[Call]
    escaped: list[str]
    """Names of activities outside of their call, of all batches so far."""
    clock_mhz: int = 0


def _copied(output: Any, into: Any = None) -> Any:
    """Return a copy of an output, in the memory of an earlier one if that is like it; None for one of another type.

    A later call could make a tensor of that. Methods are those of the class: an output could have its own.
    """
    if type(output) in (tuple, list):
        fits = type(into) is tuple and len(into) == len(output)
        return tuple(_copied(one, into[n] if fits else None) for n, one in enumerate(output))
    if type(output) not in (Tensor, Parameter) or output.is_meta:
        return None
    if type(into) is Tensor and (into.shape, into.dtype) == (output.shape, output.dtype):
        return Tensor.copy_(into, output)
    return Tensor.clone(output)


class TimedCalls:
    """Times batches of calls of one function."""

    def __init__(self, function: Callable[..., Any], sets: InputSets, device: str) -> None:
        self._device = device
        self.use(function, sets)

    def use(self, function: Callable[..., Any], sets: InputSets) -> None:
        self._function, self.sets = function, sets
        self.outputs: list[Any] = []
        """Of the last batch."""
        self._timers: dict[bool, CudaTimer] = {}
        self._changes: Iterator[int] = iter(())
        self._next: Inputs = ()
        self._last: Any = None
        """What the last call returned, on a CPU."""
        self._waits = CoreWaits()
        self._at_once = 1
        self._count = 0
        """Of timed calls."""

    def _synchronize(self) -> None:
        if self._device.startswith("cuda"):
            _synchronize()

    def open(self, *, hot: bool = False) -> TimerState:
        if not self._device.startswith("cuda"):
            size = sum(map(size_in_bytes, tensors_of(self._function(*self.sets.first))))
            at_once = calls_at_once(size, self._device)
            if not self.sets.repeatable:  # each call of a batch has a set of its own; see ``make_ahead``
                at_once = min(at_once, len(self.sets))
            return TimerState(cache_state(self.sets.all), at_once, repeatable=self.sets.repeatable)
        before = torch.cuda.memory_allocated()
        arguments = self.sets.first
        made_bytes = torch.cuda.memory_allocated() - before
        timer = self._timers[hot] = CudaTimer(
            self._function,
            arguments,
            self._device,
            cold=not hot,
            following=None if hot else self._following,
            copies=0 if hot else self.sets.copies,
            keep=True,
            fresh=lambda: self.sets.first,
        )
        self._at_once = calls_at_once(timer.output_bytes + made_bytes, self._device)
        found = timer.submit_ms, timer.idle_seconds, self.sets.repeatable
        return TimerState(CacheState.READ_FLUSH, self._at_once, *found)

    def make_ahead(self, count: int, *, hot: bool = False) -> None:
        """Make the arguments of the following calls, whose changes are not known yet, if each call gets its own.

        Also frees what the last call got, and stops the collection of garbage until the next call: both can run code of the
        implementation, which could compute the output of a call whose change is known.
        """
        self._next = ()
        for timer in self._timers.values():
            timer.clear()  # their memory is for the arguments
        self.sets.make_ahead(count, hot=hot)
        _stop_collecting()

    def batch(
        self, method: Method, changes: Sequence[int], device_ms: float = 0.0, kernels: int = 0
    ) -> Timed:
        """Time as many calls as there are changes; hot calls have the first set after the first change.

        ``HOST_SUBMIT`` decides by itself how many, given ``device_ms`` and ``kernels`` of a call.
        """
        self._count += len(changes)
        if method is _CLOCK:
            outputs = list(self.outputs)
            with self._waits:
                calls = [Call(self._by_clock(change, n, outputs)) for n, change in enumerate(changes)]
            # Only now: a call could replace it by a list that computes what it is asked for.
            self.outputs = outputs
            _collect()
            return Timed(calls, [])
        _collect()
        self.outputs = []
        timer = self._timers[method.hot]
        if method.hot:
            self.sets.changed(0, changes[0])
        if method is Method.HOST_SUBMIT:
            return Timed(timer.host_submit(device_ms, kernels, self._at_once), [])
        self._changes = iter(changes)
        by_events = method in {Method.EVENTS, Method.HOT_EVENTS}
        calls = timer.by_events(len(changes)) if by_events else timer.by_kernels(len(changes))
        self.outputs = timer.outputs
        return Timed(calls, list(timer.escaped.elements()), timer.clock_mhz)

    def _by_clock(self, change: int, number: int, outputs: list[Any]) -> float:
        inputs = self.sets.following(change)
        _collect()
        start = perf_counter_ns()
        # Within the time: both freeing an output and collecting garbage can run code of the implementation.
        self._last = None
        output = self._function(*inputs)
        _stop_collecting()
        ms = (perf_counter_ns() - start) / 1e6
        self._last = output
        # A copy: with all outputs alive, each call would wait for new pages from the system.
        if number < len(outputs):
            outputs[number] = _copied(output, outputs[number])
        else:
            outputs.append(_copied(output))
        return ms

    def _following(self) -> Inputs:
        return self.sets.following(next(self._changes))

    def change_next(self, number: int, *, hot: bool = False) -> None:
        """Change the inputs of the next clocked call: those of the next set in turn, or of the first."""
        self._next = self.sets.changed(0, number) if hot else self.sets.following(number)
        self.outputs = []
        self._synchronize()

    def clocked(self) -> Milliseconds:
        """Make one call; return its milliseconds, up to the end of its work on the device."""
        _collect()
        start = perf_counter_ns()
        # As in a batch. Freed earlier, its memory would have to be got from the system again.
        self._last = None
        output = self._function(*self._next)
        self._synchronize()
        _stop_collecting()
        ms = (perf_counter_ns() - start) / 1e6
        if self._device.startswith("cuda"):
            self.outputs = [output]
        else:
            self.outputs, self._last = [_copied(output)], output
        _collect()
        return ms

    def output(self, number: int) -> Any:
        return self.outputs[number]

    def watch_waits(self) -> None:
        """Count in the following batches how long threads wait for a core."""
        self._waits = CoreWaits()

    def waits(self, samples: int) -> Waiting:
        return self._waits.read(samples)
