"""How many input sets calls go round, and how large the caches are that they must not stay in."""

from __future__ import annotations

import os
import re
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import torch

from kernels_bench_tools.measure.operator import size_in_bytes

CUDA_INPUT_SETS = 3
"""On CUDA the flush makes calls cold; sets with different values keep a result from being looked up by its
pointer. More would be no colder: that the flush stays necessary with sets that exceed the cache by
themselves was seen on an H200, where the outputs of earlier calls leave dirty lines to write back."""
CPU_CACHES = 4
"""On the CPU, input sets together exceed the last-level cache this many times."""
MAX_ROTATED_BYTES = 512 * 2**20
MAX_INPUT_SETS = 256
FREE_MEMORY_SHARE = 0.4
"""Input sets take at most this part of the device's free memory."""
KEPT_SHARE = 0.1
"""An output larger than this part of the free memory is not kept, but for the last one."""


def input_set_count(set_bytes: int, device: str) -> int:
    """Return how many input sets calls go round.

    Args:
        set_bytes: Bytes that one call reads and writes.
        device: On the CPU, as many as it takes for each call to find the caches cold.
    """
    size = max(set_bytes, 1)
    fitting = int(FREE_MEMORY_SHARE * free_bytes(device)) // size
    if device.startswith("cuda"):
        return max(1, min(CUDA_INPUT_SETS, fitting))
    wanted = ceil(CPU_CACHES * last_level_cache_bytes() / size)
    return max(1, min(wanted, MAX_INPUT_SETS, MAX_ROTATED_BYTES // size, fitting))


def free_bytes(device: str) -> int:
    """Return how many bytes can still be allocated on the device, about."""
    if device.startswith("cuda"):
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 2 * MAX_ROTATED_BYTES


def fits_beside(output: Any, device: str) -> bool:
    """Return whether an output like this one is small enough to be kept while further calls are made."""
    values = output if isinstance(output, tuple | list) else (output,)
    return sum(size_in_bytes(value) for value in values) <= KEPT_SHARE * free_bytes(device)


def cache_bytes(device: str) -> int:
    """Return the size of the last cache before memory: a card's L2, a CPU's largest."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return last_level_cache_bytes()


@cache
def last_level_cache_bytes() -> int:
    """Return the size of the CPU's largest cache; 32 MiB where the system does not tell."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG])", path.read_text(encoding="ascii").strip())
        if match:
            sizes.append(int(match[1]) * units[match[2]])
    return max(sizes, default=32 * 2**20)
