"""Checks of the timers themselves: what is known beforehand must come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter_ns

import numpy as np
import torch
from torch import Tensor

from kernels_bench_tools.measure.timing.cupti import MarkersMissingError, record_activities
from kernels_bench_tools.schema.selfcheck import Check
from kernels_bench_tools.selfcheck.series import end_to_end_us, host_us, make_draw, wait

CYCLES = tuple(round(10 ** (exponent / 4)) for exponent in range(16, 33))
"""Four decades: some 5 us to 50 ms at 2 GHz."""
LOOPS = tuple(round(10 ** (exponent / 4)) for exponent in range(8, 21))
HOST_SLEEP_US = 1000.0


def check_linearity(device: str) -> Check:
    """Time work that is known to grow in proportion: a spinning kernel, or a loop on the CPU."""
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
    """Return the median microseconds of a kernel that spins for each number of cycles."""

    def batch() -> None:
        for _ in range(3):
            for count in cycles:
                torch.cuda._sleep(count)

    batch()  # raises the clocks
    durations = _recorded_us(batch, 3 * len(cycles))
    return [median(durations[index :: len(cycles)]) for index in range(len(cycles))]


def _recorded_us(batch: Callable[[], None], count: int) -> list[float]:
    """Return the microseconds of each of the ``count`` kernels that ``batch`` launches, in their order."""
    for _ in range(3):
        found = [activity.duration_ns / 1e3 for activity in record_activities(batch)]
        if len(found) == count:  # a session may lose some
            return found
    raise MarkersMissingError(f"the profiler returned {len(found)} of {count} kernels")


def _spin(count: int) -> None:
    for _ in range(count):
        pass


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Return slope, intercept and R² of the least-squares line through the points."""
    slope, intercept = np.polyfit(np.asarray(x, float), np.asarray(y, float), 1)
    residual = np.asarray(y, float) - (slope * np.asarray(x, float) + intercept)
    total = np.asarray(y, float) - np.mean(y)
    return float(slope), float(intercept), 1 - float(residual @ residual) / float(total @ total)


def measure_floors(device: str) -> dict[str, float]:
    """Return what nothing costs, in microseconds: medians of 100."""
    ticks = [perf_counter_ns() for _ in range(200)]
    floors = {
        "host_clock": median(later - sooner for sooner, later in pairwise(ticks)) / 1e3,
        "python_call": median(host_us(lambda: None) for _ in range(100)),
    }
    if not device.startswith("cuda"):
        return floors
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(100)]
    torch.cuda._sleep(2_000_000)  # so that all of them are queued before the first one is reached
    for start, end in pairs:
        start.record()
        end.record()
    wait(device)
    floors["empty_event_pair"] = median(start.elapsed_time(end) for start, end in pairs) * 1e3
    floors["null_kernel"] = median(_recorded_us(_launch_nothing, 100))
    floors["null_kernel_submit"] = median(host_us(lambda: torch.cuda._sleep(0)) for _ in range(100))
    floors["null_kernel_e2e"] = end_to_end_us(lambda: torch.cuda._sleep(0), device, 100)
    return floors


def _launch_nothing() -> None:
    for _ in range(100):
        torch.cuda._sleep(0)


def check_floors(floors: dict[str, float], device: str) -> Check:
    """Check that nothing costs little enough for the shortest kernels to be seen."""
    name, bound = ("null_kernel", 2.0) if device.startswith("cuda") else ("python_call", 10.0)
    return Check(
        name="floors",
        title="Nothing costs next to nothing",
        expected=f"{name.replace('_', ' ')} below {bound:g} us",
        found=f"{floors[name]:.3g} us",
        passed=floors[name] < bound,
        detail=", ".join(f"{key.replace('_', ' ')} {value:.3g} us" for key, value in floors.items()),
    )


def check_copies(device: str) -> Check:
    """Time copies from 8 MiB to 2 GiB: beyond the caches, time is a + b * bytes."""
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
        title="A copy's time is a + b · bytes",
        expected="R² above 0.999 beyond the cache, intercept below 20 us",
        found=f"R² {r_squared:.6f}, a = {intercept:.3g} us, 1 / b = {1e-3 / slope:,.0f} GB/s",
        passed=r_squared > 0.999 and abs(intercept) < 20,
        detail=", ".join(listed),
    )


def check_slow_host(device: str) -> Check:
    """Give a short kernel a host that sleeps for 1 ms: its device time stays, its end-to-end time does not."""
    x = torch.randn(512, 4096, device=device, dtype=torch.bfloat16)

    def slow(x: Tensor) -> Tensor:
        time.sleep(HOST_SLEEP_US / 1e6)
        return torch.neg(x)

    draws = [make_draw(function, (x,), device) for function in (torch.neg, slow)]
    quick_us, slow_us = (median(draw(60)) for draw in draws)
    added = end_to_end_us(lambda: slow(x), device) - end_to_end_us(lambda: torch.neg(x), device)
    return Check(
        name="slow_host",
        title="A slow host does not change the device's time",
        expected="device time within max(0.3 us, 2 %), end to end 1.0 to 1.3 ms more",
        found=f"{quick_us:.4g} us and {slow_us:.4g} us, end to end {added:+.4g} us",
        passed=abs(slow_us - quick_us) <= max(0.3, 0.02 * quick_us) and 1000 <= added <= 1300,
    )


def check_cold_and_hot(device: str) -> Check:
    """Time a kernel over 8 MiB with cold caches and with hot ones."""
    x = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    draws = [make_draw(torch.neg, (x,), device, cold=cold) for cold in (True, False)]
    cold, hot = (median(draw(120)) for draw in draws)
    return Check(
        name="cold_and_hot",
        title="Cold caches are cold",
        expected="8 MiB in, 8 MiB out: cold at least 1.25 times as long as hot",
        found=f"{cold:.4g} us cold, {hot:.4g} us hot: {cold / hot:.2f} times",
        passed=cold >= 1.25 * hot,
    )
