"""What three ways to make the caches cold do to the same kernels."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from kernels_bench_tools.measure.operator import Inputs, size_in_bytes
from kernels_bench_tools.measure.timing.cuda import ReadFlush
from kernels_bench_tools.measure.timing.cupti import MarkersMissingError, record_activities, split_calls
from kernels_bench_tools.schema.selfcheck import Check
from kernels_bench_tools.selfcheck.cases import Case, find_cases

NAMES = (
    "SiLU 128x1536",
    "layer_norm 512x4096",
    "SwiGLU 2048x11008",
    "layer_norm 32768x4096",
    "matmul 4096^3",
)
CALLS = 100
_MARKER_CYCLES = 300_000
"""150 us: the host queues a whole call in the meantime."""
_MAX_SETS = 256


def check_flushes(device: str) -> Check:
    """Compare a read flush, a rotation of inputs and a write flush on five kernels."""
    cases = {case.name: case for case in find_cases(device, quick=False)}
    told, excess = [], []
    for name in NAMES:
        read, rotated, written = _three_ways(cases[name], device)
        excess.append(read / min(rotated, written) - 1)
        told.append(f"{name}: {read:.4g} us, rotated {rotated / read:.3f}, written {written / read:.3f}")
        torch.cuda.empty_cache()
    return Check(
        name="flushes",
        title="A read flush adds nothing to a kernel's time",
        expected="at most 2 % above rotated inputs and a write flush on five kernels, whose dirty lines cost more",
        found=f"{max(excess):+.1%} at most",
        passed=max(excess) <= 0.02,
        detail="; ".join(told),
    )


def _three_ways(case: Case, device: str) -> tuple[float, float, float]:
    """Return median microseconds after a read flush, with rotated inputs, and after a write flush."""
    cache: int = torch.cuda.get_device_properties(device).L2_cache_size
    buffer = torch.zeros(max(4 * cache, 2**26), dtype=torch.int8, device=device)
    first = case.inputs(device)
    # Outputs come from the allocator's one block, so only the inputs count.
    count = min(_MAX_SETS, 1 + 4 * cache // sum(size_in_bytes(value) for value in first))
    rotated = [first, *(case.inputs(device, seed) for seed in range(1, count))]
    return (
        _median_us(case.function, [first], ReadFlush(device)),
        _median_us(case.function, rotated, lambda: None),
        _median_us(case.function, [first], lambda: buffer.zero_()),
    )


def _median_us(function: Callable[..., Any], sets: list[Inputs], flush: Callable[[], Any]) -> float:
    count = max(CALLS, 2 * len(sets))

    def batch() -> None:
        for turn in range(count):
            flush()
            torch.cuda._sleep(_MARKER_CYCLES)
            function(*sets[turn % len(sets)])
            torch.cuda._sleep(1)

    batch()
    for attempt in range(3):
        try:
            # The first half finds the sets as they were made.
            calls = split_calls(record_activities(batch), count)[count // 2 :]
            return median(call.ms for call in calls) * 1e3
        except MarkersMissingError:
            if attempt == 2:
                raise
    raise AssertionError("unreachable")
