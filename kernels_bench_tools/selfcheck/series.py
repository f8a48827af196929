"""Short series of timed calls, for checks that need many of them: the same timers as the records', no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.measure.operator import Inputs
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import MarkersMissingError

Draw = Callable[[int], list[float]]
"""Times the given number of further calls, in microseconds."""
WARM_UP_SECONDS = 0.1
_ATTEMPTS = 3


def make_draw(
    function: Callable[..., Any],
    inputs: Inputs,
    device: str,
    *,
    cold: bool = True,
    more_inputs: Sequence[Inputs] = (),
    warm_up_seconds: float = WARM_UP_SECONDS,
) -> Draw:
    """Return what times calls of ``function``: by their kernels on CUDA, else by the host's clock.

    Args:
        function: What is called.
        inputs: Its arguments.
        device: Where they are.
        cold: Whether to flush the caches before each call on CUDA.
        more_inputs: Further arguments; calls go round all of them.
        warm_up_seconds: How long to keep the device busy with it first, so that its clocks are up.
    """
    if device.startswith("cuda"):
        timer = CudaTimer(function, inputs, device, cold=cold, more_inputs=more_inputs)
        repeat(lambda: timer.by_events(10), warm_up_seconds)
        return _cuda_draw(timer)
    turn = cycle([inputs, *more_inputs])
    repeat(lambda: function(*next(turn)), warm_up_seconds)

    def draw(count: int) -> list[float]:
        return [host_us(partial(function, *next(turn))) for _ in range(count)]

    return draw


def repeat(call: Callable[[], Any], seconds: float) -> None:
    """Call again and again, until so many seconds are over."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        call()


def _cuda_draw(timer: CudaTimer) -> Draw:
    def draw(count: int) -> list[float]:
        for _ in range(_ATTEMPTS - 1):
            try:
                return [call.ms * 1e3 for call in timer.by_kernels(count)]
            except MarkersMissingError:
                continue  # a buffer was lost; the next session may have all
        return [call.ms * 1e3 for call in timer.by_kernels(count)]

    draw(1)  # the first session initializes the profiler
    return draw


def host_us(call: Callable[[], Any]) -> float:
    """Return the microseconds that ``call`` takes on the host."""
    start = perf_counter_ns()
    call()
    return (perf_counter_ns() - start) / 1e3


def end_to_end_us(call: Callable[[], Any], device: str, repetitions: int = 30) -> float:
    """Return the median microseconds from an idle device to the end of the call's work."""

    def whole() -> None:
        call()
        wait(device)

    times = []
    for _ in range(repetitions):
        wait(device)
        times.append(host_us(whole))
    return median(times)


def wait(device: str) -> None:
    """Wait until the device has done everything it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
