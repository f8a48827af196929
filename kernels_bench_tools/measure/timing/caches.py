"""Number of input sets that calls rotate through, and sizes of caches and free memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from math import ceil
from pathlib import Path

import torch

from kernels_bench_tools.measure.operator import Inputs

CUDA_INPUT_SETS, CUDA_SMALL_BYTES = 3, 128 * 2**20
"""On CUDA the flush makes calls cold; sets with different values prevent results from being cached by pointer. More
sets cannot replace the flush: on an H200, outputs of earlier calls leave dirty lines to write back. How long a small call
takes depends on the addresses of its inputs, so sets smaller than this together are more: an average over addresses."""
CUDA_MOST_INPUT_SETS = 32
CPU_CACHES = 4
"""On the CPU, size of all input sets together, in last-level caches."""
MAX_ROTATED_BYTES = 256 * 2**20
"""More would take longer to make than to use. Of a cache that many cores share, such as 480 MiB, a virtual machine has a part."""
MAX_INPUT_SETS = 256
FREE_MEMORY_SHARE = 0.4
"""Largest share of the device's free memory for input sets."""
_FLUSHED_CACHES, _LEAST_FLUSHED = 4, 64 * 2**20
KEPT_SHARE = 0.1
"""Largest share of the device's free memory for outputs that are kept."""


def input_set_count(moved_bytes: int, device: str, held_bytes: int = 0) -> int:
    """Return how many sets of inputs calls rotate through.

    ``moved_bytes`` are those that a call reads and writes, ``held_bytes`` those of a set, if they are more.
    """
    moved, held = max(moved_bytes, 1), max(moved_bytes, held_bytes, 1)
    fitting = int(FREE_MEMORY_SHARE * free_bytes(device)) // held
    if device.startswith("cuda"):
        wanted = min(max(CUDA_INPUT_SETS, ceil(CUDA_SMALL_BYTES / held)), CUDA_MOST_INPUT_SETS)
        return max(1, min(wanted, fitting))
    wanted = ceil(CPU_CACHES * last_level_cache_bytes() / moved)
    return max(1, min(wanted, MAX_INPUT_SETS, MAX_ROTATED_BYTES // held, fitting))


def make_input_sets(make: Callable[[int], Inputs], count: int, device: str) -> list[Inputs]:
    """Return sets of inputs, made from their numbers; on CUDA each lies in memory segments of its own.

    Addresses within a segment of PyTorch's allocator make short calls fast or slow together. On an H200, medians of
    10 us varied by 0.43 % between sets that shared a new segment, and by 0.12 % with 16 sets in a segment each.
    """
    if not device.startswith("cuda"):
        return [make(number) for number in range(count)]
    sets = []
    for number in range(count):
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            sets.append(make(number))
    return sets


def free_bytes(device: str) -> int:
    if device.startswith("cuda"):
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 2 * MAX_ROTATED_BYTES


def calls_at_once(output_bytes: int, device: str) -> int:
    room = int(KEPT_SHARE * free_bytes(device))
    return max(
        1, (room if device.startswith("cuda") else min(room, MAX_ROTATED_BYTES)) // max(output_bytes, 1)
    )


def flush_bytes(device: str) -> int:
    """Return how much is read to evict all else from a GPU's L2 cache."""
    return int(max(_FLUSHED_CACHES * cache_bytes(device), _LEAST_FLUSHED))


def cache_bytes(device: str) -> int:
    """Return the size of the last-level cache: the L2 of a GPU, the largest of a CPU."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return last_level_cache_bytes()


@cache
def last_level_cache_bytes() -> int:
    """Return the size of the CPU's largest cache; 32 MiB if the system does not report it."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG])", path.read_text(encoding="ascii").strip())
        if match:
            sizes.append(int(match[1]) * units[match[2]])
    return max(sizes, default=32 * 2**20)
