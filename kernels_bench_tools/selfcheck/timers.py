"""Short series of timed calls, and checks of the timers against known times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import correlation, linear_regression, median
from time import perf_counter, perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import Inputs, size_in_bytes
from kernels_bench_tools.measure.timing.cuda import CudaTimer, ReadFlush
from kernels_bench_tools.measure.timing.cupti import (
    MarkersMissingError,
    record_activities,
    retry,
    split_batch,
)
from kernels_bench_tools.records.selfcheck import Check
from kernels_bench_tools.selfcheck.cases import Case, find_cases

Draw = Callable[[int], list[float]]
"""A function that times the given number of further calls, in microseconds."""
WARM_UP_SECONDS = 0.1
"""Time to call a function before it is timed, so that the clocks are up."""
_ATTEMPTS = 3
CYCLES = tuple(round(10 ** (exponent / 4)) for exponent in range(16, 33))
"""Four decades: about 5 us to 50 ms at 2 GHz."""
LOOPS = tuple(round(10 ** (exponent / 4)) for exponent in range(8, 21))
HOST_SLEEP_US = 1000.0
FLUSH_CASES = (
    "SiLU 128x1536",
    "layer_norm 512x4096",
    "SwiGLU 2048x11008",
    "layer_norm 32768x4096",
    "matmul 4096^3",
)
FLUSH_CALLS = 100
_MARKER_CYCLES = 300_000
"""150 us, in which the host queues a whole call."""
_MAX_SETS = 256


def make_draw(function: Callable[..., Any], inputs: Inputs, device: str, *, cold: bool = True) -> Draw:
    """Return a function that times calls: by their kernels on CUDA, flushed if ``cold``, else by the host's clock."""
    if device.startswith("cuda"):
        timer = CudaTimer(function, inputs, device, cold=cold)
        repeat(lambda: timer.by_events(10), WARM_UP_SECONDS)
        retry(lambda: timer.by_kernels(1), _ATTEMPTS)  # the first session initializes the profiler
        return lambda n: [call.ms * 1e3 for call in retry(lambda: timer.by_kernels(n), _ATTEMPTS)]
    call = partial(function, *inputs)
    repeat(call, WARM_UP_SECONDS)
    return lambda n: [host_us(call) for _ in range(n)]


def repeat(call: Callable[[], Any], seconds: float) -> None:
    """Call repeatedly for this many seconds."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        call()


def host_us(call: Callable[[], Any]) -> float:
    """Return the microseconds that ``call`` takes on the host."""
    start = perf_counter_ns()
    call()
    return (perf_counter_ns() - start) / 1e3


def end_to_end_us(call: Callable[[], Any], device: str, repetitions: int = 30) -> float:
    """Return the median microseconds from an idle device until the call's work is complete."""

    def whole() -> None:
        call()
        wait(device)

    times = []
    for _ in range(repetitions):
        wait(device)
        times.append(host_us(whole))
    return median(times)


def wait(device: str) -> None:
    """Wait until the device is idle."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def check_linearity(device: str) -> Check:
    """Check that time is proportional to work: of a spinning kernel, or a loop on the CPU."""
    if device.startswith("cuda"):
        steps, times = CYCLES, _spin_us(CYCLES)
        bound, unit = 0.9999, "MHz"
    else:
        steps, times = LOOPS, [min(host_us(partial(_spin, n)) for _ in range(15)) for n in LOOPS]
        bound, unit = 0.999, "loops per us"
    slope, intercept, r_squared = fit_line(steps, times)
    return Check(
        name="linearity",
        title="Time is proportional to work",
        expected=f"R² above {bound} over {len(steps)} lengths, {steps[0]:.0e} to {steps[-1]:.0e}",
        found=f"R² {r_squared:.7f}, {1 / slope:.5g} {unit}, {intercept:.3g} us at zero",
        passed=r_squared > bound,
        detail=f"{min(times):.3g} to {max(times):.5g} us",
    )


def _spin_us(cycles: Sequence[int]) -> list[float]:
    """Return the median microseconds of a kernel that spins for this many cycles, for each number."""

    def batch() -> None:
        for _ in range(3):
            for count in cycles:
                torch.cuda._sleep(count)

    batch()  # raises the clocks
    durations = _recorded_us(batch, 3 * len(cycles))
    return [median(durations[index :: len(cycles)]) for index in range(len(cycles))]


def _recorded_us(batch: Callable[[], Any], count: int) -> list[float]:
    """Return the microseconds of each of the ``count`` kernels that ``batch`` launches, in order."""

    def durations() -> list[float]:
        found = [activity.duration_ns / 1e3 for activity in record_activities(batch)]
        if len(found) != count:
            raise MarkersMissingError(f"the profiler returned {len(found)} of {count} kernels")
        return found

    return retry(durations, _ATTEMPTS)


def _spin(count: int) -> None:
    for _ in range(count):
        pass


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Return slope, intercept and R² of the least-squares line through the points."""
    slope, intercept = linear_regression(x, y)
    return slope, intercept, correlation(x, y) ** 2


def measure_floors(device: str) -> dict[str, float]:
    """Return the overhead of empty calls in microseconds, as medians of 100."""
    ticks = [perf_counter_ns() for _ in range(200)]
    floors = {
        "host_clock": median(later - sooner for sooner, later in pairwise(ticks)) / 1e3,
        "python_call": median(host_us(lambda: None) for _ in range(100)),
    }
    if not device.startswith("cuda"):
        return floors
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(100)]
    torch.cuda._sleep(2_000_000)  # so that all are queued before the first one runs
    for start, end in pairs:
        start.record()
        end.record()
    wait(device)
    floors["empty_event_pair"] = median(start.elapsed_time(end) for start, end in pairs) * 1e3
    floors["null_kernel"] = median(_recorded_us(lambda: [torch.cuda._sleep(0) for _ in range(100)], 100))
    floors["null_kernel_submit"] = median(host_us(lambda: torch.cuda._sleep(0)) for _ in range(100))
    floors["null_kernel_e2e"] = end_to_end_us(lambda: torch.cuda._sleep(0), device, 100)
    return floors


def check_floors(floors: dict[str, float], device: str) -> Check:
    """Check that the overhead of an empty call is below the time of the shortest kernels."""
    name, bound = ("null_kernel", 2.0) if device.startswith("cuda") else ("python_call", 10.0)
    return Check(
        name="floors",
        title="Null-kernel overhead" if device.startswith("cuda") else "Overhead of an empty call",
        expected=f"{name.replace('_', ' ')} below {bound:g} us",
        found=f"{floors[name]:.3g} us",
        passed=floors[name] < bound,
        detail=", ".join(f"{key.replace('_', ' ')} {value:.3g} us" for key, value in floors.items()),
    )


def check_copies(device: str) -> Check:
    """Check that the time of copies beyond the caches is a + b * bytes, from 8 MiB to 2 GiB."""
    sizes = [2**exponent for exponent in range(23, 32)]
    times = []
    for size in sizes:
        source = torch.zeros(size, dtype=torch.int8, device=device)
        target = torch.empty_like(source)
        draw = make_draw(target.copy_, (source,), device)
        times.append(median(draw(30)))
        del source, target, draw
        torch.cuda.empty_cache()
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    large = [(2 * size, us) for size, us in zip(sizes, times, strict=True) if size >= 2 * cache]
    slope, intercept, r_squared = fit_line([moved for moved, _ in large], [us for _, us in large])
    listed = (f"{size // 2**20} MiB {us:.4g} us" for size, us in zip(sizes, times, strict=True))
    return Check(
        name="copy_sweep",
        title="Time of a copy is a + b · bytes",
        expected="R² above 0.999 beyond the cache, intercept below 20 us",
        found=f"R² {r_squared:.6f}, a = {intercept:.3g} us, 1 / b = {1e-3 / slope:,.0f} GB/s",
        passed=r_squared > 0.999 and abs(intercept) < 20,
        detail=", ".join(listed),
    )


def check_slow_host(device: str) -> Check:
    """Check that a host that sleeps for 1 ms changes the end-to-end time only, not the device time."""
    x = torch.randn(512, 4096, device=device, dtype=torch.bfloat16)

    def slow(x: Tensor) -> Tensor:
        time.sleep(HOST_SLEEP_US / 1e6)
        return torch.neg(x)

    draws = [make_draw(function, (x,), device) for function in (torch.neg, slow)]
    quick_us, slow_us = (median(draw(60)) for draw in draws)
    added = end_to_end_us(lambda: slow(x), device) - end_to_end_us(lambda: torch.neg(x), device)
    return Check(
        name="slow_host",
        title="Device time does not depend on a slow host",
        expected="device time within max(0.3 us, 2 %), end to end 1.0 to 1.3 ms more",
        found=f"{quick_us:.4g} us and {slow_us:.4g} us, end to end {added:+.4g} us",
        passed=abs(slow_us - quick_us) <= max(0.3, 0.02 * quick_us) and 1000 <= added <= 1300,
    )


def check_cold_and_hot(device: str) -> Check:
    """Check that a kernel over 8 MiB takes longer with cold caches than with hot ones."""
    x = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    draws = [make_draw(torch.neg, (x,), device, cold=cold) for cold in (True, False)]
    cold, hot = (median(draw(120)) for draw in draws)
    return Check(
        name="cold_and_hot",
        title="Cold calls have cold caches",
        expected="8 MiB in, 8 MiB out: cold at least 1.25 times as long as hot",
        found=f"{cold:.4g} us cold, {hot:.4g} us hot: {cold / hot:.2f} times",
        passed=cold >= 1.25 * hot,
    )


def check_flushes(device: str) -> Check:
    """Check that a read flush adds no time, against rotated inputs and a write flush, on five kernels."""
    cases = {case.name: case for case in find_cases(device, quick=False)}
    details, excess = [], []
    for name in FLUSH_CASES:
        read, rotated, written = _three_ways(cases[name], device)
        excess.append(read / min(rotated, written) - 1)
        details.append(f"{name}: {read:.4g} us, rotated {rotated / read:.3f}, written {written / read:.3f}")
        torch.cuda.empty_cache()
    return Check(
        name="flushes",
        title="A read flush adds no time to a kernel",
        expected="at most 2 % above rotated inputs and a write flush on five kernels, whose dirty lines cost more",
        found=f"{max(excess):+.1%} at most",
        passed=max(excess) <= 0.02,
        detail="; ".join(details),
    )


def _three_ways(case: Case, device: str) -> tuple[float, float, float]:
    """Return median microseconds after a read flush, with rotated inputs, and after a write flush."""
    cache: int = torch.cuda.get_device_properties(device).L2_cache_size
    buffer = torch.zeros(max(4 * cache, 2**26), dtype=torch.int8, device=device)
    first = case.inputs(device)
    # Outputs reuse one block of the allocator, so only the inputs count.
    count = min(_MAX_SETS, 1 + 4 * cache // sum(size_in_bytes(value) for value in first))
    rotated = [first, *(case.inputs(device, seed) for seed in range(1, count))]
    return (
        _median_us(case.function, [first], ReadFlush(device)),
        _median_us(case.function, rotated, lambda: None),
        _median_us(case.function, [first], lambda: buffer.zero_()),
    )


def _median_us(function: Callable[..., Any], sets: list[Inputs], flush: Callable[[], Any]) -> float:
    count = max(FLUSH_CALLS, 2 * len(sets))

    def batch() -> None:
        for turn in range(count):
            flush()
            torch.cuda._sleep(_MARKER_CYCLES)
            function(*sets[turn % len(sets)])
            torch.cuda._sleep(1)

    batch()
    calls = retry(lambda: split_batch(record_activities(batch), count).calls, _ATTEMPTS)
    return median(call.ms for call in calls[count // 2 :]) * 1e3  # without the first round of all sets
