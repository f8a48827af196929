"""One implementation, in the process that calls and times it.

What it is given and what its outputs are worth is decided by :mod:`.trial`, in this process or in another.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.hub import loaded_kernels
from kernels_bench_tools.measure.correctness.check import Case, without_memory
from kernels_bench_tools.measure.device.environment import describe_environment, imported_packages
from kernels_bench_tools.measure.judge.changing_inputs import InputSets, how_to_change
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.judge.memory import copied, copy_elsewhere, poison_memory
from kernels_bench_tools.measure.modes import changing, in_mode, timed_function
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload
from kernels_bench_tools.measure.timing.caches import make_input_sets
from kernels_bench_tools.measure.timing.calls import TimedCalls
from kernels_bench_tools.records.record import Environment, Flag, HubKernel, Milliseconds
from kernels_bench_tools.records.request import FORWARD

PROCESS_SEEDS = 1000
"""Distance between the seeds of two processes, so that each measures with other values."""
RECOMPILE_LIMIT = 64


@dataclass(frozen=True)
class Called:
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

    def call(self, case: Case) -> Called:
        inputs = self._inputs(case)
        for like in [value for value in inputs[:1] if isinstance(value, Tensor)] + self._like:
            poison_memory(like, self._device)
        self._synchronize()
        start = perf_counter_ns()
        output = self._timed.checked_call(*inputs)
        self._synchronize()
        ms = (perf_counter_ns() - start) / 1e6
        self._like = without_memory(output)
        return Called(output, list(inputs), ms)

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
                positions,
                how_to_change(self._operator, rotated[0], positions, entries=entries),
                overwritten=[
                    number
                    for number, value in enumerate(rotated[0])
                    if isinstance(value, Tensor) and self._operator.may_overwrite(number)
                ],
                prepare=self._timed.prepare,
            ),
        )

    def arguments(self, which: int) -> list[Any]:
        return list(self.sets.inputs(which))

    def finish(self) -> dict[Flag, str]:
        """Look for replaced functions and background work after the timed calls; return flags with their reasons."""
        Guard.finish(self._guard, self._count)
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
