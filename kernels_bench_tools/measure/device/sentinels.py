"""Sentinels: kernels that every process times before and after its workloads, to see if the device was slower then."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from kernels_bench_tools.measure.device.peaks import Operation, median_ms
from kernels_bench_tools.measure.timing.cuda import CudaTimer

_COPY_BYTES, _SMALL_COPY_BYTES = 2**30, 2**28
_SIZE = 4096
_CALLS = 20
_WARM_SECONDS = 0.05
_CLEARED_PER_SECOND = 3e11
"""Bytes of freed memory that the driver clears in a second. Meanwhile a kernel that moves memory takes 11 % longer: on an
H200 for 0.16 s after 64 GiB were freed."""
_WARM_BATCH = 20
_MATMULS = 12


def measure_sentinels(device: str, kept: dict[str, Operation] | None = None) -> dict[str, float]:
    """Return the milliseconds of the sentinels of a CUDA device: ``copy``, ``matmul`` and ``null``; none for others.

    They copy 1 GiB (256 MiB of less than 16 GiB), multiply 4096 x 4096 matrices in half precision, and write one number.
    Takes about 0.3 s, plus the start of the profiler. Their buffers are kept in ``kept``: after a large workload, a copy
    between new ones takes up to 6 % longer. On a CPU they would depend on other processes more than on the device.
    """
    if not device.startswith("cuda"):
        return {}
    calls = {} if kept is None else kept
    with torch.no_grad():
        try:
            if not calls:
                calls.update(_sentinels(device))
            freed = 2 * torch.cuda.max_memory_reserved(
                device
            )  # in this process, and as much in that of a cell
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            # Until the clocks are up, too, which takes an idle GPU tens of milliseconds.
            start = perf_counter()
            while perf_counter() - start < _WARM_SECONDS + freed / _CLEARED_PER_SECOND:
                for _ in range(_WARM_BATCH):
                    calls["copy"]()
                torch.cuda.synchronize()
            found = {name: median_ms(calls[name], device, _CALLS) for name in ("copy", "null")}
            return found | {"matmul": _one_at_a_time(calls["matmul"], device)}
        finally:
            del calls  # else its buffers would still be in use
            torch.cuda.empty_cache()


def _one_at_a_time(call: Operation, device: str) -> float:
    """Return the median device time in ms of calls that are far apart.

    Matmuls back to back draw so much power that an H200's clocks fall by 8 % within milliseconds. Each call has a
    profiler session of its own, which leaves the GPU idle in between.
    """
    timer = CudaTimer(call, (), device)
    return median(timer.by_kernels(1)[0].ms for _ in range(_MATMULS))


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
