"""Measured peaks of the device, by the timer of implementations: memory traffic in four mixes, matmuls by dtype."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.measure.timing.caches import last_level_cache_bytes
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import MarkersMissingError

_perf_counter_ns = perf_counter_ns

_BUFFER_BYTES = 2**30
_CPU_CACHES, _CPU_BUFFER_BYTES = 4, (2**26, 2**28)
"""On a CPU: size of a buffer in last-level caches, and its bounds. One of two caches still half hits them."""
_LARGEST_SHARE = 0.4
"""Share of the free memory for three buffers."""
_CALLS, _MIN_CALLS, _CPU_CALLS = 12, 5, 5
_MAX_MS = 60.0
"""For one peak on a CUDA device."""
_MIN_CPU_CALLS, _MAX_CPU_MS = 3, 30.0
_SIZE, _FLOAT32_SIZE, _CPU_SIZE = 8192, 4096, 1024

Operation = Callable[[], Any]


def measure_peaks(device: str, names: Collection[str] | None = None) -> dict[str, float]:
    """Return the device's peaks, GB/s for traffic and TFLOP/s for matmuls; ``names`` are those that are needed.

    ``read``, ``write``, ``copy`` (as much read as written) and ``triad`` (twice as much) move buffers far larger
    than the cache, in the fastest of several ways. ``matmul_<dtype>`` multiplies random square matrices. What the
    device does not support is left out. Takes about a second on a CUDA device and half a second on a CPU.
    """
    with torch.no_grad():
        if not device.startswith("cuda"):
            traffic = _traffic(cpu_buffer_bytes(), device)
            matmul_ms = _best_ms([_matmul(torch.float32, _CPU_SIZE, device)], device)
            return traffic | {"matmul_float32": 2 * _CPU_SIZE**3 / matmul_ms / 1e9}
        free, _ = torch.cuda.mem_get_info(device)
        # Whole rows of `_traffic`.
        size = int(min(_BUFFER_BYTES, _LARGEST_SHARE * free / 3)) // 2**16 * 2**16
        try:
            traffic = _traffic(size, device) if names is None or "copy" in names else {}
            return traffic | _matmuls(device, names)
        finally:
            torch.cuda.empty_cache()


def median_ms(call: Operation, device: str, calls: int = _CALLS) -> float:
    """Return the median device time of a call in ms, with a cold cache; makes fewer calls of a slow one."""
    timer = CudaTimer(call, (), device)
    once = median(one.ms for one in timer.by_events(2))
    count = max(_MIN_CALLS, min(calls, int(_MAX_MS / max(once, 1e-3))))
    try:
        return median(one.ms for one in timer.by_kernels(count))
    except MarkersMissingError:
        return median(one.ms for one in timer.by_events(count))


def host_ms(call: Operation, calls: int) -> list[float]:
    """Return the times of ``calls`` calls in ms by the host's clock, after a warm-up call; fewer if they are slow."""
    call()
    times: list[float] = []
    while len(times) < calls and (len(times) < _MIN_CPU_CALLS or sum(times) < _MAX_CPU_MS):
        start = _perf_counter_ns()
        call()
        times.append((_perf_counter_ns() - start) / 1e6)
    return times


def cpu_buffer_bytes() -> int:
    """Return the size of a buffer that exceeds the CPU's caches."""
    smallest, largest = _CPU_BUFFER_BYTES
    return min(max(_CPU_CACHES * last_level_cache_bytes(), smallest), largest) // 2**16 * 2**16


def _best_ms(calls: Sequence[Operation], device: str) -> float:
    if device.startswith("cuda"):
        return min(median_ms(call, device) for call in calls)
    # The minimum, since other processes disturb a CPU.
    return min(min(host_ms(call, _CPU_CALLS)) for call in calls)


def _traffic(size: int, device: str) -> dict[str, float]:
    """Return the rates of moving buffers of ``size`` bytes."""
    # Filled, because the system allocates a CPU's memory only when it is written.
    a, b, c = (torch.full((size // 4,), 1.0, device=device) for _ in range(3))
    if device.startswith("cuda"):
        a.uniform_()
        b.uniform_()
    rows = a.view(-1, 2**14)
    ways: dict[str, tuple[int, Sequence[Operation]]] = {
        "read": (1, (a.sum, lambda: rows.sum(-1), lambda: rows.amax(-1))),
        "write": (1, (lambda: c.fill_(2.0), c.zero_)),
        "copy": (2, (lambda: c.copy_(a), lambda: torch.neg(a, out=c))),
        "triad": (3, (lambda: torch.add(a, b, alpha=3.0, out=c),)),
    }
    return {name: times * size / _best_ms(calls, device) / 1e6 for name, (times, calls) in ways.items()}


def _matmuls(device: str, names: Collection[str] | None) -> dict[str, float]:
    capability = torch.cuda.get_device_capability(device)
    size = _SIZE if capability >= (8, 0) else _FLOAT32_SIZE
    # How to make it, its size, and the capability that it needs.
    known: dict[str, tuple[Callable[[int, str], Operation], int, tuple[int, int]]] = {
        "matmul_bfloat16": (partial(_matmul, torch.bfloat16), size, (8, 0)),
        "matmul_float16": (partial(_matmul, torch.float16), size, (0, 0)),
        "matmul_float32": (partial(_matmul, torch.float32), _FLOAT32_SIZE, (0, 0)),
        "matmul_float8": (_float8_matmul, size, (8, 9)),
        "matmul_tf32": (partial(_matmul, torch.float32), size, (8, 0)),
    }
    found = {}
    for name, (make, length, needed) in known.items():
        if capability >= needed and (names is None or name in names):
            precision = _tf32() if name == "matmul_tf32" else nullcontext()
            # Left out if this build or device does not support it, or there is too little memory.
            with precision, suppress(RuntimeError, AttributeError, TypeError):
                found[name] = 2 * length**3 / median_ms(make(length, device), device) / 1e9
    return found


def _matmul(dtype: torch.dtype, size: int, device: str) -> Operation:
    # Random, because zeros draw less power and run at higher clocks.
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    return lambda: torch.matmul(a, b, out=out)


def _float8_matmul(size: int, device: str) -> Operation:
    a, b = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones((), device=device)
    multiply: Any = getattr(torch, "_scaled_mm")  # noqa: B009  torch has no public function yet
    return lambda: multiply(
        a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
    )


@contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    with warnings.catch_warnings():
        # Some releases recommend another function, which others do not have.
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
