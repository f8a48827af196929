"""One implementation, in the process that calls and times it.

What it is given, how many calls are timed and what its outputs are worth is decided by :mod:`.batches` and :mod:`..trial`,
in this process or in another: an implementation cannot know it before the calls are over.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from time import perf_counter_ns
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor

from kernels_bench_tools.hub import loaded_kernels
from kernels_bench_tools.measure.correctness.check import Case, without_memory
from kernels_bench_tools.measure.device.environment import describe_environment, imported_packages
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges, InputSets
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.judge.memory import copied, copy_elsewhere, poison_memory
from kernels_bench_tools.measure.modes import changing, in_mode, timed_function
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload
from kernels_bench_tools.measure.timing.caches import calls_at_once, make_input_sets
from kernels_bench_tools.measure.timing.cpu import cache_state
from kernels_bench_tools.measure.timing.cuda import COPY, CudaTimer
from kernels_bench_tools.measure.timing.cupti import record_activities
from kernels_bench_tools.measure.timing.queue import GpuSeal, HostSeal
from kernels_bench_tools.measure.timing.sampling import Call
from kernels_bench_tools.records.record import CacheState, Environment, Flag, HubKernel, Milliseconds
from kernels_bench_tools.records.request import FORWARD

# Bound before an implementation can replace them.
_synchronize = torch.cuda.synchronize


class Method(StrEnum):
    EVENTS = "events"
    KERNELS = "kernels"
    HOT_EVENTS = "hot_events"
    HOT_KERNELS = "hot_kernels"
    HOST_SUBMIT = "host_submit"
    SUSTAINED = "sustained"
    """Without a pause, on sets that change before all of them."""
    CLOCK = "clock"
    """By the host's clock, for the CPU: each call is asked for alone."""

    @property
    def hot(self) -> bool:
        """Whether all calls of a batch have the same inputs, which change between batches."""
        return self in {Method.HOT_EVENTS, Method.HOT_KERNELS, Method.HOST_SUBMIT}


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


class TimedCalls:
    """Times batches of calls of one function."""

    def __init__(self, function: Callable[..., Any], sets: InputSets, device: str) -> None:
        self._device, self.pid = device, os.getpid()
        self._seal: GpuSeal | HostSeal | None = None
        self.use(function, sets)

    def use(self, function: Callable[..., Any], sets: InputSets) -> None:
        self._function, self.sets = function, sets
        self.outputs: list[Any] = []
        """Of the last batch."""
        self._timers: dict[bool, CudaTimer] = {}
        self._changes: Iterator[int] = iter(())
        self._next: Inputs = ()
        self._at_once = 1
        self._count, self._ms = 0, 0.0
        """Of timed calls, and the time of those by the host's clock together."""

    def _synchronize(self) -> None:
        if self._device.startswith("cuda"):
            _synchronize()

    def open(self, *, hot: bool = False) -> TimerState:
        if not self._device.startswith("cuda"):
            return TimerState(cache_state(self.sets.all), 1, repeatable=self.sets.repeatable)
        before = torch.cuda.memory_allocated()
        arguments = self.sets.first
        made_bytes = torch.cuda.memory_allocated() - before
        timer = self._timers[hot] = CudaTimer(
            self._function,
            arguments,
            self._device,
            cold=not hot,
            following=None if hot else self._following,
            changes=None if hot else self._activities_of_change(),
            keep=True,
            fresh=lambda: self.sets.first,
        )
        self._at_once = calls_at_once(timer.output_bytes + made_bytes, self._device)
        found = timer.submit_ms, timer.idle_seconds, self.sets.repeatable
        return TimerState(CacheState.READ_FLUSH, self._at_once, *found)

    def _activities_of_change(self) -> Mapping[str, int]:
        """Return by name how many activities of the device a change has at most."""
        if not self.sets.renews:
            return {COPY: self.sets.copies}
        self.sets.renewed()  # the first time may load and allocate more
        return Counter(activity.name for activity in record_activities(self.sets.renewed))

    def make_ahead(self, count: int, *, hot: bool = False) -> None:
        """Make the arguments of the following calls, whose changes are not known yet, if each call gets its own."""
        self._next = ()
        for timer in self._timers.values():
            timer.clear()  # their memory is for the arguments
        self.sets.make_ahead(count, hot=hot)

    def batch(
        self, method: Method, changes: Sequence[int], device_ms: float = 0.0, kernels: int = 0
    ) -> Timed:
        """Time as many calls as there are changes; hot calls have the first set after the first change.

        ``HOST_SUBMIT`` decides by itself how many, given ``device_ms`` and ``kernels`` of a call.
        """
        self._count += len(changes)
        self.outputs = []
        timer = self._timers[method.hot]
        if method.hot:
            self.sets.changed(0, changes[0])
        if method is Method.HOST_SUBMIT:
            return Timed(timer.host_submit(device_ms, kernels, self._at_once), [])
        if method is Method.SUSTAINED:
            for which in range(len(self.sets)):
                self.sets.changed(which, changes[which])
            changes = changes[len(self.sets) :]
        self._changes = iter(changes)
        by_events = method in {Method.EVENTS, Method.HOT_EVENTS}
        of_method = timer.by_events if by_events else timer.by_kernels
        calls = (timer.without_pause if method is Method.SUSTAINED else of_method)(len(changes))
        self.outputs = timer.outputs
        return Timed(calls, list(timer.escaped.elements()), timer.clock_mhz)

    def _following(self) -> Inputs:
        return self.sets.following(next(self._changes))

    def change_next(self, number: int) -> None:
        """Change the first set, for the next clocked call."""
        self._next = self.sets.changed(0, number)
        self.outputs = []
        self._synchronize()

    def clocked(self, change: int) -> Annotated[float, Meta(gt=0, le=1e9)]:
        """Make one call; return its milliseconds, up to the end of its work on the device.

        With a ``change`` other than 0 its inputs are the next set in turn after it, else what was changed before.
        """
        self._count += 1
        if change:
            self._next = self.sets.following(change)
        start = perf_counter_ns()
        self.outputs = []  # freeing an output is part of a call
        output = self._function(*self._next)
        self._synchronize()
        ms = (perf_counter_ns() - start) / 1e6
        self._ms += ms
        self.outputs = [output]
        return ms

    def seal(self, file: int = -1) -> GpuSeal | HostSeal:
        """Return what seals calls; ``file`` is that of the process that times them."""
        if self._seal is None:
            self._seal = (GpuSeal if self._device.startswith("cuda") else HostSeal)(file)
        return self._seal

    def queue(self, change: int, count: int) -> None:
        """Queue this many sealed calls; on a GPU with the first set, which is as after this change then, keeping their outputs."""
        seal, self._count, self.outputs = self.seal(), self._count + count, []
        if isinstance(seal, HostSeal):
            self._queue_on_host(seal, self.sets.sealed_on_host(count))
            return
        outputs, calls = list[Any](), self.sets.sealed(count, change)
        self._synchronize()
        try:
            seal.start(calls[0][0])
            for number, (_, arguments) in enumerate(calls):
                outputs.append(self._function(*arguments))
                seal.following(outputs[-1], calls[number + 1][0] if number + 1 < count else None)
        finally:
            seal.end()
        self._synchronize()
        self.outputs = outputs
        if self.sets.repeatable:
            self.sets.changed(0, change)

    def _queue_on_host(self, seal: HostSeal, calls: Sequence[tuple[Callable[[int], None], Inputs]]) -> None:
        # Outputs are not kept: writing to other memory each time would take longer.
        seal.start(calls[0][0])
        start = perf_counter_ns()
        for (_, arguments), following in zip(calls, [*calls[1:], None], strict=True):
            output = self._function(*arguments)
            seal.following(output, following and following[0])
            del output  # freeing it is part of a call
        self._ms += (perf_counter_ns() - start) / 1e6
        seal.end()

    def again(self, number: int) -> Any:
        """Return the output of a call of the last queue on a CPU, made once more; what came after it is undone."""
        seal = self.seal()
        assert isinstance(seal, HostSeal)
        return self._function(*self.sets.again(seal.keys, number))

    def answered(self) -> None:
        """Nothing is to be waited for after a queue of the same process."""

    def output(self, number: int) -> Any:
        return self.outputs[number]


PROCESS_SEEDS = 1000
"""Distance between the seeds of two processes, so that each measures with other values."""
RECOMPILE_LIMIT = 64


@dataclass(frozen=True)
class CallResult:
    output: Any
    arguments: list[Any]
    """The inputs after the call."""
    ms: Milliseconds


@dataclass(frozen=True)
class Description:
    environment: Environment
    packages: dict[str, str]
    hub: list[HubKernel]
    """Kernels that it has loaded from the hub."""


class Candidate(TimedCalls):
    """An implementation of the forward operator, on one workload after the other."""

    def __init__(
        self,
        operator: Operator,
        workloads: Sequence[Workload],
        function: Callable[..., Any],
        device: str,
        *,
        mode: str = FORWARD,
        guard: Guard | None = None,
        prepare: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(function, InputSets([()]), device)
        self._forward, self._workloads, self._implementation, self._mode = operator, workloads, function, mode
        self._guard, self._prepare = guard or Guard(device), prepare

    def start(self, number: int, process: int) -> None:
        """Begin with a workload; each process has other inputs."""
        _reset_compiler()
        workload = self._workloads[number]
        self._workload = replace(workload, seed=workload.seed + PROCESS_SEEDS * process)
        self._operator = in_mode(self._forward, self._mode).for_workload(self._workload)
        forward = self._forward.for_workload(self._workload)
        self._timed = timed_function(forward, self._implementation, self._mode, self._prepare)
        self._changing = changing(forward, self._mode)
        self._edge_cases: Iterator[tuple[str, Inputs]] | None = None
        self._edge = -1
        self._like: list[Tensor] = []

    def call(self, case: Case) -> CallResult:
        inputs = self._inputs(case)
        for like in [value for value in inputs[:1] if isinstance(value, Tensor)] + self._like:
            poison_memory(like, self._device)
        self._synchronize()
        start = perf_counter_ns()
        output = self._timed.checked_call(*inputs)
        self._synchronize()
        ms = (perf_counter_ns() - start) / 1e6
        self._like = without_memory(output)
        return CallResult(output, list(inputs), ms)

    def _inputs(self, case: Case) -> Inputs:
        with _usual_defaults():
            inputs = case.inputs(self._operator, self._workload, self._device)
        if case.edge < 0:
            # At addresses of their own: where its inputs begin may not be ignored.
            return tuple(map(copy_elsewhere, inputs)) if case.smaller else inputs
        smaller = self._operator.smaller(self._workload)
        if self._edge_cases is None or case.edge <= self._edge:
            self._edge_cases, self._edge = iter(self._operator.edge_cases(smaller, inputs)), -1
        found: Inputs = ()
        while self._edge < case.edge:
            with _usual_defaults():
                found = next(self._edge_cases)[1]
            self._edge += 1
        return tuple(map(copied, found))  # later cases are made of the same tensors

    def _made(self, workload: Workload, seed: int) -> Inputs:
        with _usual_defaults():
            return self._operator.made_inputs(workload, self._device, seed)

    def inspect(self) -> dict[Flag, str]:
        """Look for background work, lazy or aliased outputs and replaced functions; return flags with their reasons."""
        inputs = self._made(self._workload, self._workload.seed)
        self._guard.inspect(self._operator, self._timed.call, inputs)
        return dict(self._guard.reasons)

    def prepare(self, sets: int, entries: bool = False) -> None:
        """Make this many sets of inputs for the timed calls, and compile for them; ``entries`` as in :mod:`.changing_inputs`."""
        workload, device = self._workload, self._device
        rotated = make_input_sets(lambda number: self._made(workload, workload.seed + number), sets, device)
        # Odd shapes among the edge cases may have left code compiled for any shape: compile again for this one.
        if _reset_compiler():
            self._timed.call(*self._inputs(Case(workload.seed)))
        positions = self._changing(rotated[0])
        self.use(
            self._timed.run,
            InputSets(
                rotated,
                InputChanges.of(self._operator, rotated[0], positions, entries=entries),
                overwritten=[
                    number
                    for number, value in enumerate(rotated[0])
                    if isinstance(value, Tensor) and self._operator.may_overwrite(number)
                ],
                prepare=self._timed.prepare,
            ),
        )
        self._guard.begin()

    def arguments(self, which: int) -> list[Any]:
        return list(self.sets.inputs(which))

    def finish(self) -> dict[Flag, str]:
        """Look for replaced functions and background work after the timed calls; return flags with their reasons."""
        Guard.finish(self._guard, self._count, inf if self._device.startswith("cuda") else self._ms)
        return dict(self._guard.reasons)

    def peak_bytes(self) -> int | None:
        """Return the memory that a call allocates on a CUDA device."""
        if not self._device.startswith("cuda"):
            return None
        self.outputs, inputs = [], self.sets.first
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self._function(*inputs)
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)

    def describe(self) -> Description:
        return Description(describe_environment(self._device), imported_packages(), loaded_kernels())

    def release(self) -> None:
        self.use(self._implementation, InputSets([()]))
        gc.collect()
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()

    def abort(self) -> None:
        """End this process, so that the workloads that are left run in another one."""
        os.abort()


@contextmanager
def _usual_defaults() -> Iterator[None]:
    """Make inputs as the judge does, whose process has not the cell's default dtype and device."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def _reset_compiler() -> bool:
    """Drop what torch.compile compiled; return whether it was used at all."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    # Beyond the default of eight kernels, calls run eagerly without a message.
    dynamo.config.recompile_limit = RECOMPILE_LIMIT
    inductor: Any = sys.modules.get("torch._inductor.config")
    if inductor is not None:
        # Else the first process's choice of block sizes, which is made by timing them, is that of all processes.
        inductor.autotune_local_cache = False
    # Other packages import it too, and resetting it unused imports the whole compiler, which takes seconds.
    if not dynamo.convert_frame.FRAME_COUNTER:
        return False
    dynamo.reset()
    return True
