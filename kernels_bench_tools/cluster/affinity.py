"""CPU affinity of workers that share a host. Dask preloads this module in each worker."""

from __future__ import annotations

import os
from pathlib import Path

CPUS_VARIABLE = "KBT_WORKER_CPUS"
"""The processors that a worker may use, comma-separated."""


def split_cpus(count: int) -> list[str]:
    """Divide the processors of this process into ``count`` shares of adjacent processors, at least one each."""
    cpus = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    shares = []
    for number in range(count):
        start, end = number * len(cpus) // count, (number + 1) * len(cpus) // count
        shares.append(cpus[start:end] or [cpus[number % len(cpus)]])
    return [",".join(map(str, share)) for share in shares]


def dask_setup(_worker: object) -> None:
    """Restrict this process and its threads to its share; Dask calls this in each worker."""
    listed = os.environ.get(CPUS_VARIABLE, "")
    if not listed or not hasattr(os, "sched_setaffinity"):
        return
    cpus = {int(number) for number in listed.split(",")}
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cpus)
