"""One implementation on one workload: built, called, checked, timed; or the reason why not."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure.correctness import Verdict, check
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload
from kernels_bench_tools.measure.timing import Measurement, input_set_count, measure
from kernels_bench_tools.records import Failure, Status, Work


@dataclass(kw_only=True)
class Trial:
    """How it went. Everything after the step that failed is None."""

    status: Status
    failure: Failure | None = None
    compile_ms: float | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    peak_bytes: int | None = None
    work: Work | None = None


def run_trial(operator: Operator, workload: Workload, function: Callable[..., Any], device: str) -> Trial:
    """Call, check and time ``function`` on one workload; its exceptions become the trial's status.

    An incorrect implementation is timed too: its latency is shown, without a rank.
    """
    trial = Trial(status=Status.OK)
    try:
        with torch.no_grad():
            _run(trial, operator, workload, function, device)
    except Exception as error:
        status, failure = classify(error)
        if status is Status.ERROR:
            traceback.print_exc(file=sys.stderr)
        trial = Trial(status=status, failure=failure, compile_ms=trial.compile_ms, work=trial.work)
    finally:
        _release(device)
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
    trial: Trial, operator: Operator, workload: Workload, function: Callable[..., Any], device: str
) -> None:
    _forget_compilations()
    inputs = operator.inputs(workload, device, workload.seed)
    output, trial.compile_ms = _first_call(function, inputs, device)
    trial.work = operator.work(inputs, output)
    _poison(output)
    del output
    trial.verdict = check(operator, workload, function, inputs)
    if not trial.verdict.ok:
        trial.status = Status.INCORRECT
        trial.failure = Failure(type="WrongResult", msg=trial.verdict.reason)
    # Odd shapes among the hard cases may have left code compiled for any shape: compile anew for this one.
    if _forget_compilations():
        function(*inputs)
    sets = input_set_count(trial.work.bytes_moved, device)
    rotated = [inputs, *(operator.inputs(workload, device, workload.seed + n) for n in range(1, sets))]
    trial.measurement = measure(function, rotated, device)
    trial.peak_bytes = _peak_bytes(function, inputs, device)


def _first_call(function: Callable[..., Any], inputs: Inputs, device: str) -> tuple[Any, float]:
    _synchronize(device)
    start = perf_counter_ns()
    output = function(*inputs)
    _synchronize(device)
    return output, (perf_counter_ns() - start) / 1e6


def _poison(output: Any) -> None:
    """Leave NaN in the memory that the next output is likely to get, so that unwritten elements show."""
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        torch.full_like(output, float("nan"))


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
    if dynamo is None:
        return False
    dynamo.reset()
    return True


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
