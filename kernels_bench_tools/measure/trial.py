"""One implementation on one workload: built, called, checked, timed; or the reason why not."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure.correctness.check import Verdict, check
from kernels_bench_tools.measure.correctness.status import decide
from kernels_bench_tools.measure.device.roofline import FLOORS, Judgement
from kernels_bench_tools.measure.modes import Subject, in_mode, subject
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, no_cases
from kernels_bench_tools.measure.session import Session
from kernels_bench_tools.measure.timing.caches import input_set_count
from kernels_bench_tools.measure.timing.measure import Measurement, measure
from kernels_bench_tools.schema.build import FORWARD
from kernels_bench_tools.schema.record import Failure, Flag, Kernel, Status, Work

RECOMPILE_LIMIT = 64
PROCESS_SEEDS = 1000
"""Seeds of two processes are this far apart, so that each measures with values of its own."""


@dataclass(kw_only=True)
class Trial:
    """How it went. Everything after the step that failed is None."""

    status: Status
    seed: int = 0
    """Of the inputs that were checked and, first of all, timed."""
    failure: Failure | None = None
    compile_ms: float | None = None
    """The first call."""
    second_ms: float | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    judgement: Judgement | None = None
    peak_bytes: int | None = None
    work: Work | None = None
    flags: list[Flag] = field(default_factory=list)

    def add(self, flags: Sequence[Flag]) -> None:
        """Add flags, each once."""
        self.flags += [flag for flag in dict.fromkeys(flags) if flag not in self.flags]


def run_trial(
    operator: Operator,
    workload: Workload,
    function: Callable[..., Any],
    session: Session,
    *,
    mode: str = FORWARD,
    process: int = 0,
    kernels: str = "",
) -> Trial:
    """Call, check and time ``function`` on one workload; its exceptions become the trial's status.

    An implementation that is wrong or whose time cannot be trusted is timed too: its latency is shown,
    without a rank.

    Args:
        operator: What is computed, forward.
        workload: The problem size, one of this mode.
        function: The implementation.
        session: The process that this is part of.
        mode: ``"fwd"``, ``"bwd"`` or ``"fwd_bwd"``.
        process: Which of several processes it is; each has other inputs.
        kernels: Regular expression that the name of some launched kernel must match; empty for any.
    """
    workload = replace(workload, seed=workload.seed + PROCESS_SEEDS * process)
    trial = Trial(status=Status.OK, seed=workload.seed)
    try:
        with torch.no_grad():
            of_mode = in_mode(operator, mode).form(workload)
            if process > 0:  # the first one judges the hard cases, which are the same in all
                of_mode = replace(of_mode, cases=no_cases)
            timed = subject(operator.form(workload), function, mode)
            _run(trial, of_mode, workload, timed, session, kernels)
    except Exception as error:
        status, failure = classify(error)
        if status is Status.ERROR:
            traceback.print_exc(file=sys.stderr)
        trial = Trial(
            status=status,
            seed=trial.seed,
            failure=failure,
            compile_ms=trial.compile_ms,
            second_ms=trial.second_ms,
            work=trial.work,
        )
    finally:
        _release(session.device)
    return trial


def failed_trial(error: Exception, status: Status = Status.ERROR) -> Trial:
    """Return the trial of an implementation that could not even be loaded."""
    return Trial(status=status, failure=_failure(error))


def classify(error: Exception) -> tuple[Status, Failure]:
    """Return which status an exception means, and how the record tells it."""
    if isinstance(error, Unsupported):
        return Status.UNSUPPORTED, _failure(error)
    # The CPU's allocator raises a bare RuntimeError.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return Status.OOM, _failure(error)
    return Status.ERROR, _failure(error)


def _run(
    trial: Trial,
    operator: Operator,
    workload: Workload,
    timed: Subject,
    session: Session,
    kernels: str,
) -> None:
    device, guard, function = session.device, session.guard, timed.call
    _forget_compilations()
    _compile_every_layout()
    inputs = operator.inputs(workload, device, trial.seed)
    output, trial.compile_ms = _timed_call(function, inputs, device)
    trial.work = operator.work(inputs, output)
    del output
    trial.second_ms = _timed_call(function, inputs, device)[1]
    trial.verdict = check(operator, workload, function, inputs, session.smaller)
    trial.add(trial.verdict.flags)
    trial.add(guard.inspect(operator, workload, function, inputs))
    # Odd shapes among the hard cases may have left code compiled for any shape: compile anew for this one.
    if _forget_compilations():
        function(*inputs)
    sets = input_set_count(trial.work.bytes_moved, device)
    rotated = [inputs, *(operator.inputs(workload, device, trial.seed + n) for n in range(1, sets))]
    guard.remember(rotated)
    prepared = [timed.prepare(*given) for given in rotated]
    found = trial.measurement = measure(timed.run, prepared, device, clocks=session.clocks)
    trial.add(found.flags)
    given = {id(state): inputs for state, inputs in zip(prepared, rotated, strict=True)}
    kept = [(given[id(state)], output) for state, output in found.kept]
    # What an operator changes in place is no longer what the call was given.
    trial.add(guard.check_outputs(operator, [] if operator.in_place else kept))
    kept.clear()
    found.kept.clear()  # as much memory as several calls use
    trial.add(guard.finish())
    trial.add(_floor_flags(found, session.null_ms) + _fallback_flags(found.kernels, kernels))
    trial.judgement = session.judge(trial.work, found.latency.p50, workload.dtype)
    reasons = {
        Flag.STREAM_ESCAPE: found.note,
        Flag.FALLBACK: f"no kernel matches {kernels!r}",
    } | guard.reasons
    trial.status, trial.failure = decide(trial.verdict.reason, trial.judgement.exceeds, trial.flags, reasons)
    trial.peak_bytes = _peak_bytes(timed.run, prepared[0], device)


def _floor_flags(found: Measurement, null_ms: float) -> list[Flag]:
    return [Flag.NEAR_FLOOR] if found.latency.p50 < FLOORS * null_ms else []


def _fallback_flags(launched: Sequence[Kernel], declared: str) -> list[Flag]:
    """Return ``fallback`` if kernels were seen and none of them is one that was declared."""
    if not declared or not launched or any(re.search(declared, kernel.name) for kernel in launched):
        return []
    return [Flag.FALLBACK]


def _timed_call(function: Callable[..., Any], inputs: Inputs, device: str) -> tuple[Any, float]:
    _synchronize(device)
    start = perf_counter_ns()
    output = function(*inputs)
    _synchronize(device)
    return output, (perf_counter_ns() - start) / 1e6


def _peak_bytes(function: Callable[..., Any], inputs: Inputs, device: str) -> int | None:
    if not device.startswith("cuda"):
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function(*inputs)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _forget_compilations() -> bool:
    """Drop what torch.compile compiled, if it was used at all; say whether it was."""
    dynamo = sys.modules.get("torch._dynamo")
    # Imported by others as well, and resetting what was not used imports the whole compiler, for seconds.
    if dynamo is None or not dynamo.convert_frame.FRAME_COUNTER:
        return False
    dynamo.reset()
    return True


def _compile_every_layout() -> None:
    """Let torch.compile go on: beyond its limit of eight, calls run eagerly without a word."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.config.recompile_limit = RECOMPILE_LIMIT


def _release(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _failure(error: Exception) -> Failure:
    message = " ".join(str(error).split())
    return Failure(type=type(error).__name__, msg=message[:500])
