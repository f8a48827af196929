"""Sentinels: kernels that every process times before and after its workloads, to see if the device was slower then."""

from __future__ import annotations

from math import inf
from time import perf_counter

import torch

from kernels_bench_tools.measure.device.peaks import Operation, median_ms

_COPY_BYTES, _SMALL_COPY_BYTES = 2**30, 2**28
_SIZE = 4096
_CALLS = 20
_WARM_SECONDS, _MOST_SECONDS = 0.01, 0.05
_AS_FAST = 1.01
_CLEARED_PER_SECOND = 3e11
"""Bytes of freed memory that the driver clears in a second. Meanwhile a kernel that moves memory takes 11 % longer: on an
H200 for 0.16 s after 64 GiB were freed."""
_WARM_BATCH = 20


class Sentinels:
    """The sentinels of a device. Their buffers are kept: after a large workload, a copy between new ones takes up to 6 % longer."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._calls: dict[str, Operation] = {}
        self._fastest = inf
        """Seconds of the fastest copy so far."""

    def measure(self) -> dict[str, float]:
        """Return the milliseconds of the sentinels of a CUDA device: ``copy``, ``matmul`` and ``null``; none for others.

        They copy 1 GiB (256 MiB of less than 16 GiB), multiply 4096 x 4096 matrices in half precision, and write one number.
        Takes about 0.1 s, plus the start of the profiler. On a CPU they would depend on other processes more than on the device.
        """
        if not self._device.startswith("cuda"):
            return {}
        with torch.no_grad():
            self._calls = self._calls or _sentinels(self._device)
            # In this process, and as much in that of a cell.
            freed = 2 * torch.cuda.max_memory_reserved(self._device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._warm_up(_MOST_SECONDS + freed / _CLEARED_PER_SECOND)
            found = {name: median_ms(call, self._device, _CALLS) for name, call in self._calls.items()}
            torch.cuda.empty_cache()
        return found

    def _warm_up(self, most_seconds: float) -> None:
        """Copy until the clocks are up and freed memory is cleared: a copy is as fast as any before, or this time is over."""
        copy, start, batch = self._calls["copy"], perf_counter(), inf
        while (elapsed := perf_counter() - start) < most_seconds:
            if elapsed >= _WARM_SECONDS and batch <= _AS_FAST * self._fastest:
                break
            began = perf_counter()
            for _ in range(_WARM_BATCH):
                copy()
            torch.cuda.synchronize()
            batch = perf_counter() - began
            self._fastest = min(self._fastest, batch)


def _sentinels(device: str) -> dict[str, Operation]:
    free, _ = torch.cuda.mem_get_info(device)
    copy_bytes = _COPY_BYTES if free > 16 * _COPY_BYTES else _SMALL_COPY_BYTES
    half = torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    source = torch.full((copy_bytes // 4,), 1.0, device=device)
    target = torch.full_like(source, 2.0)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(_SIZE, _SIZE, device=device, generator=generator).to(half) for _ in range(2))
    out = torch.empty_like(a)
    one = torch.zeros(1, device=device)
    return {
        "copy": lambda: target.copy_(source),
        "matmul": lambda: torch.matmul(a, b, out=out),
        "null": lambda: one.fill_(1.0),
    }
