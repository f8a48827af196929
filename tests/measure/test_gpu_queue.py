"""On a GPU another process's clock gives the time of calls in a queue, whatever the process of the calls reports."""

import multiprocessing
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import profiler

from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.device.sentinels import Sentinels
from kernels_bench_tools.measure.judge.candidate import Candidate
from kernels_bench_tools.measure.judge.remote import RemoteCandidate, serve
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import MARKER
from kernels_bench_tools.measure.trial import Trial, run_trial
from kernels_bench_tools.records.record import REJECTING, Flag, Status

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
SHARE = 0.75
"""Of the rows of a product that are computed where the profiler sees it."""
Rest = Callable[[Tensor, Tensor, Tensor], object]


def timed() -> bool:
    """Return whether a call is timed by the profiler."""
    names, frame = set(), sys._getframe()
    while frame := frame.f_back:
        names.add(frame.f_code.co_name)
    return "_bracketed" in names


def product(x: Tensor, weight: Tensor, output: Tensor) -> None:
    torch.mm(x, weight.t(), out=output)


def in_two_parts(rest: Rest, when: Callable[[], bool] = timed) -> Callable[..., Tensor]:
    """Return a function that leaves its last rows to another one, in timed calls."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        output = x.new_empty(len(x), len(weight))
        seen = int(SHARE * len(x)) if len(x) > 64 and when() else len(x)
        product(x[:seen], weight, output[:seen])
        if seen < len(x):
            rest(x[seen:], weight, output[seen:])
        return output

    return function


def hidden(rest: Rest) -> Rest:
    """Return a function whose kernels the profiler does not record."""

    def toggle(on: bool) -> None:
        with suppress(RuntimeError):
            torch.autograd._toggle_collection_dynamic(on, {torch.profiler.ProfilerActivity.CUDA})

    def function(*given: Tensor) -> None:
        profiled = timed()  # else there is nothing that could be turned off
        if profiled:
            toggle(False)
        rest(*given)
        if profiled:
            toggle(True)

    return function


def on_another_stream(*, joined: bool) -> Rest:
    side = torch.cuda.Stream()

    def rest(*given: Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product(*given)
        if joined:
            torch.cuda.current_stream().wait_stream(side)

    return rest


def by_every_third_call() -> Rest:
    left: list[tuple[Tensor, ...]] = []

    def rest(*given: Tensor) -> None:
        left.append(given)
        if len(left) == 3:
            for one in left:
                product(*one)
            left.clear()

    return rest


class Fewer:
    """Results of a profiler with one kernel for each call."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def events(self) -> list[Any]:
        kept, markers, seen = [], 0, False
        for event in sorted(self._results.events(), key=lambda one: one.start_ns()):
            marker = MARKER in event.name()
            if marker or not seen or not markers % 2:
                kept.append(event)
            markers, seen = markers + marker, not marker
        return kept


def losing_kernels() -> Callable[..., Tensor]:
    ordinary = profiler._disable_profiler
    profiler._disable_profiler = lambda: Fewer(ordinary())
    return in_two_parts(product, when=lambda: True)


def lying() -> Callable[..., Tensor]:
    for name in ("by_kernels", "by_events"):
        honest = getattr(CudaTimer, name)

        def lie(*given: Any, honest: Callable[..., Any] = honest) -> Any:
            return [replace(call, ms=SHARE * call.ms) for call in honest(*given)]

        setattr(CudaTimer, name, lie)
    return in_two_parts(product, when=lambda: False)


def waiting() -> Callable[..., Tensor]:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        output = torch.nn.functional.linear(x, weight)
        torch.cuda.current_stream().synchronize()
        return output

    return function


FUNCTIONS: dict[str, Callable[[], Callable[..., Tensor]]] = {
    "work that the profiler does not record": lambda: in_two_parts(hidden(product)),
    "work that it does not record on another stream": lambda: in_two_parts(
        hidden(on_another_stream(joined=True)), when=lambda: True
    ),
    "work on another stream": lambda: in_two_parts(on_another_stream(joined=False)),
    "work of three calls in one": lambda: in_two_parts(by_every_third_call()),
    "work that the profiler loses": losing_kernels,
    "false times": lying,
    "waits for the device": waiting,
}


def workload_of(operator: Operator, number: int) -> Workload:
    return operator.workloads("default")[number]


def serve_one(operator: str, number: int, function: str, connection: Connection) -> None:
    found = find_operator(operator)
    made = FUNCTIONS[function]() if function else found.baseline
    with suppress(EOFError):  # when it is judged
        serve(Candidate(found, [workload_of(found, number)], made, "cuda"), connection)


def judged(operator: str = "matmul", number: int = 0, function: str = "") -> Trial:
    """Judge a function that another process serves, by default the operator's baseline."""
    here, there = multiprocessing.Pipe()
    arguments = operator, number, function, there
    child = multiprocessing.get_context("spawn").Process(target=serve_one, args=arguments)
    child.start()
    there.close()
    found = find_operator(operator)
    workload = workload_of(found, number)
    session = BenchmarkSession(
        device="cuda", clocks=ClockSampler(""), sentinels=Sentinels("cuda"), separate=True
    )
    trial = run_trial(found, workload, 0, RemoteCandidate(here), session)
    here.close()
    child.join(20)
    return trial


@pytest.mark.parametrize(
    ("operator", "number"),
    [
        ("activation", 0),
        ("layer_norm", 0),
        ("layer_norm", -1),
        ("rotary", -1),
        ("matmul", 0),
        ("flash_attn", 0),
        ("moe", 0),
    ],
)
def test_the_time_of_sealed_calls_is_that_of_the_kernels_of_an_honest_call(
    operator: str, number: int
) -> None:
    trial = judged(operator, number)

    assert trial.status is Status.OK, trial.failure
    assert not REJECTING.intersection(trial.flags)
    reported, sealed = trial.timing.latency.p50, trial.timing.quantities.sealed.p50
    kernels = sum(kernel.count for kernel in trial.timing.kernels)
    assert abs(sealed - reported) < 0.05 * reported + 0.0015 * (kernels + 1)


@pytest.mark.parametrize(
    ("function", "flag"),
    [
        (name, Flag.STREAM_ESCAPE if name == "work on another stream" else Flag.TIMER_TAMPER)
        for name in FUNCTIONS
        if name != "waits for the device"
    ],
)
def test_work_outside_of_the_reported_time_costs_the_rank(function: str, flag: Flag) -> None:
    trial = judged(function=function)

    if function == "work that the profiler loses" and trial.status is Status.ERROR:
        assert trial.failure.type == "NoKernelError"  # it lost all of it
        return
    assert trial.status is Status.REJECTED
    assert flag in trial.flags
    assert flag is Flag.STREAM_ESCAPE or "by the judge's clock" in trial.failure.msg


def test_a_function_that_waits_for_the_device_has_no_rank() -> None:
    trial = judged(function="waits for the device")

    assert trial.status is Status.REJECTED
    assert Flag.UNSEALED in trial.flags
    assert trial.timing.quantities.sealed is None
