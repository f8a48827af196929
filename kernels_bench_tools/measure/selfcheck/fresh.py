"""Calls timed at addresses that nothing else was timed at."""

from __future__ import annotations

import numpy as np
import torch

from kernels_bench_tools.measure.rotation import CUDA_INPUT_SETS
from kernels_bench_tools.measure.selfcheck.clocks import make_draw
from kernels_bench_tools.measure.selfcheck.kernels import Case

WARM_UP_SECONDS = 0.05
"""The device has been busy before."""
SETTLED_SECONDS = 0.3
"""For what must repeat from process to process: calls that draw much power take so long to settle."""
MAX_SPACER_MIB = 256


def time_as_recorded(case: Case, device: str, seed: int, calls: int) -> list[float]:
    """Return the microseconds of ``calls`` calls of a case as a record has them: three input sets, settled."""
    first, *more = case.input_sets(device, seed, CUDA_INPUT_SETS)
    seconds = SETTLED_SECONDS if device.startswith("cuda") else WARM_UP_SECONDS
    draw = make_draw(case.function, first, device, more_inputs=more, warm_up_seconds=seconds)
    return draw(calls)


def time_afresh(case: Case, device: str, source: np.random.Generator, calls: int) -> list[float]:
    """Return the microseconds of ``calls`` calls of a case, with inputs that are allocated for them.

    How fast a card's memory is depends on the address: two buffers may differ by 1 % for as long as they
    are kept. A block of random size before them moves the buffers; three sets of them are gone round, as
    for a record.

    Args:
        case: What is timed.
        device: Where.
        source: Decides about addresses and values.
        calls: How many are timed.
    """
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # or the buffers of the case before would be used again
    size = 512 * int(source.integers(1, MAX_SPACER_MIB * 2**11))
    _spacer = torch.empty(size, dtype=torch.int8, device=device)
    first, *more = case.input_sets(device, int(source.integers(2**31)), CUDA_INPUT_SETS)
    draw = make_draw(case.function, first, device, more_inputs=more, warm_up_seconds=WARM_UP_SECONDS)
    return draw(calls)
