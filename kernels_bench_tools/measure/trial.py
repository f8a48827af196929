"""Measure one implementation on one workload: call, check and time it; exceptions become its status."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure.correctness.check import Correctness, check
from kernels_bench_tools.measure.modes import TimedFunction, in_mode, timed_function
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload, no_edge_cases
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.timing.caches import input_set_count
from kernels_bench_tools.measure.timing.measure import TimingResult, measure
from kernels_bench_tools.schema.build import FORWARD
from kernels_bench_tools.schema.record import REJECTING, Failure, Flag, Status, Work
from kernels_bench_tools.schema.roofline import LAUNCH_FACTOR, RooflineResult

RECOMPILE_LIMIT = 64
PROCESS_SEEDS = 1000
"""Distance between the seeds of two processes, so that each measures with other values."""


@dataclass(kw_only=True)
class Trial:
    """Result of one implementation on one workload. What was not reached is None."""

    status: Status
    seed: int = 0
    """Of the inputs that are checked, and of the first input set that is timed."""
    failure: Failure | None = None
    compile_ms: float | None = None
    """The first call."""
    second_ms: float | None = None
    correctness: Correctness | None = None
    timing: TimingResult | None = None
    roofline: RooflineResult | None = None
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
    session: BenchmarkSession,
    *,
    mode: str = FORWARD,
    process: int = 0,
    kernels: str = "",
) -> Trial:
    """Call, check and time ``function`` on one workload; an exception becomes the trial's status.

    An implementation that is incorrect or rejected is timed too: its latency is shown without a rank. The operator is
    the forward one. Each ``process`` has other inputs. ``kernels`` is a regular expression that the name of some
    launched kernel must match; empty for any.
    """
    workload = replace(workload, seed=workload.seed + PROCESS_SEEDS * process)
    trial = Trial(status=Status.OK, seed=workload.seed)
    try:
        with torch.no_grad():
            of_mode = in_mode(operator, mode).for_workload(workload)
            if process > 0:  # edge cases are the same in all processes; the first one checks them
                of_mode = replace(of_mode, edge_cases=no_edge_cases)
            timed = timed_function(operator.for_workload(workload), function, mode)
            _run(trial, of_mode, workload, timed, session, kernels)
    except Exception as error:
        status, failure = classify(error)
        if status is Status.UNSUPPORTED and trial.compile_ms is not None:
            # It accepted the size: this is about the values.
            status = Status.ERROR
            failure = Failure(
                type="Refused", msg=f"refused other values of a size that it accepts: {failure.msg}"
            )
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
        gc.collect()
        if session.device.startswith("cuda"):
            torch.cuda.empty_cache()
    return trial


def failed_trial(error: Exception, status: Status = Status.ERROR) -> Trial:
    """Return the trial of an implementation that could not be loaded."""
    return Trial(status=status, failure=_failure(error))


def classify(error: Exception) -> tuple[Status, Failure]:
    """Return the status and the record's failure for an exception."""
    status = Status.ERROR
    if isinstance(error, Unsupported | NotImplementedError):
        status = Status.UNSUPPORTED
    # The CPU's allocator raises a plain RuntimeError.
    elif isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        status = Status.OOM
    return status, _failure(error)


def decide(
    wrong: str, above_roofline: str, flags: Sequence[Flag], reasons: Mapping[Flag, str]
) -> tuple[Status, Failure | None]:
    """Return the status of an implementation that ran, and why it is not ``ok``; reasons are empty if there is none."""
    if wrong:
        return Status.INCORRECT, Failure(type="WrongResult", msg=wrong)
    if above_roofline:
        return Status.EXCEEDS_PHYSICS, Failure(type="ExceedsPhysics", msg=above_roofline)
    rejecting = [flag for flag in flags if flag in REJECTING]
    if rejecting:
        message = "; ".join(
            f"{flag.value}: {reasons[flag]}" if flag in reasons else flag.value for flag in rejecting
        )
        return Status.REJECTED, Failure(type="Rejected", msg=message[:500])
    return Status.OK, None


def _run(
    trial: Trial,
    operator: Operator,
    workload: Workload,
    timed: TimedFunction,
    session: BenchmarkSession,
    kernels: str,
) -> None:
    device, guard, function = session.device, session.guard, timed.call
    _reset_compiler()
    inputs = operator.inputs(workload, device, trial.seed)
    output, trial.compile_ms = _timed_call(function, inputs, device)
    trial.work = operator.work(inputs, output)
    del output
    trial.second_ms = _timed_call(function, inputs, device)[1]
    trial.correctness = check(operator, workload, function, inputs, session.smaller_results)
    trial.add(trial.correctness.flags)
    trial.add(guard.inspect(operator, workload, function, inputs))
    # Odd shapes among the edge cases may have left code compiled for any shape: compile again for this one.
    if _reset_compiler():
        function(*inputs)
    sets = input_set_count(trial.work.bytes_moved, device)
    rotated = [inputs, *(operator.inputs(workload, device, trial.seed + n) for n in range(1, sets))]
    guard.remember(rotated)
    prepared = [timed.prepare(*given) for given in rotated]
    found = trial.timing = measure(timed.run, prepared, device, clocks=session.clocks)
    trial.add(found.flags)
    given = {id(state): inputs for state, inputs in zip(prepared, rotated, strict=True)}
    kept = [(given[id(state)], output) for state, output in found.kept]
    # Inputs that the operator changes in place are no longer those of the call.
    trial.add(guard.check_outputs(operator, [] if operator.in_place else kept))
    kept.clear()
    found.kept.clear()  # frees the memory of several calls
    trial.add(guard.finish())
    if found.latency.p50 < LAUNCH_FACTOR * session.null_ms:
        trial.add([Flag.NEAR_FLOOR])
    if kernels and found.kernels and not any(re.search(kernels, kernel.name) for kernel in found.kernels):
        trial.add([Flag.FALLBACK])
    trial.roofline = session.assess(trial.work, found.latency.p50, workload.dtype)
    reasons = {
        Flag.STREAM_ESCAPE: found.note,
        Flag.FALLBACK: f"no kernel matches {kernels!r}",
    } | guard.reasons
    trial.status, trial.failure = decide(trial.correctness.reason, trial.roofline.above, trial.flags, reasons)
    trial.peak_bytes = _peak_bytes(timed.run, prepared[0], device)


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


def _reset_compiler() -> bool:
    """Drop what torch.compile compiled; return whether it was used at all."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    # Beyond the default of eight kernels, calls run eagerly without a message.
    dynamo.config.recompile_limit = RECOMPILE_LIMIT
    # Other packages import it too, and resetting it unused imports the whole compiler, which takes seconds.
    if not dynamo.convert_frame.FRAME_COUNTER:
        return False
    dynamo.reset()
    return True


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _failure(error: Exception) -> Failure:
    message = " ".join(str(error).split())
    return Failure(type=type(error).__name__, msg=message[:500])
