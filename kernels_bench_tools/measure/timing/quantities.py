"""The host's part of a call on a CUDA device, and the time since the process started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from kernels_bench_tools.measure.operator import Inputs
from kernels_bench_tools.measure.timing.cuda import cycles_per_ms, spin
from kernels_bench_tools.measure.timing.sampling import MIN_SAMPLES, affordable

SECONDS = 0.1
"""Time for the host's part; at least six calls are made in any case."""
QUEUE = 800
"""Kernels that can be queued without waiting for the device: the queue holds about 1024."""
MAX_SPIN_MS = 200.0
_START_TIME = 21
"""Index of a process's start in ``/proc/self/stat``, in clock ticks since boot."""
_MAX_START_MS = 3_600_000.0
WAITED_MS = 0.0
"""Time that this process waited for its turn."""
_synchronize = torch.cuda.synchronize  # bound before an implementation can replace it


def host_submit(
    function: Callable[..., Any],
    arguments: Callable[[], Inputs],
    submit_ms: float,
    device_ms: float,
    kernels: int,
    at_once: int,
) -> Iterator[float]:
    """Yield the host's milliseconds per call; a spinning kernel keeps the device busy, and the queue has room.

    ``arguments`` returns those of a call; those of ``at_once`` calls fit into memory.
    """
    batch = max(1, min(30, at_once, QUEUE // max(kernels, 1)))
    spin_ms = min(1.5 * batch * submit_ms + 0.1, MAX_SPIN_MS)
    round_seconds = (spin_ms + batch * (device_ms + submit_ms)) / 1e3
    wanted = affordable(SECONDS, round_seconds / batch)
    rate, taken = cycles_per_ms(), 0
    start = perf_counter()
    while taken < wanted and (taken < MIN_SAMPLES or perf_counter() - start < SECONDS):
        given = [arguments() for _ in range(min(batch, wanted - taken))]
        _synchronize()
        spin(spin_ms, rate)
        for inputs in given:
            before = perf_counter_ns()
            output = function(*inputs)
            yield (perf_counter_ns() - before) / 1e6
            del output
            taken += 1
    _synchronize()


def since_process_start_ms() -> float | None:
    """Return the milliseconds since this process started, apart from waiting, in clock ticks of 10 ms; None if unknown."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        # The second field is the program's name in parentheses, which may contain spaces.
        fields = ["", "", *stat.rpartition(")")[2].split()]
        started = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
        elapsed = 1000 * (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    elapsed -= WAITED_MS
    return elapsed if 0 <= elapsed < _MAX_START_MS else None
