"""Calls timed at addresses that nothing else was timed at."""

from __future__ import annotations

import numpy as np
import torch

from kernels_bench_tools.measure.timing.caches import CUDA_INPUT_SETS
from kernels_bench_tools.measure.timing.measure import measure
from kernels_bench_tools.schema.record import Latency
from kernels_bench_tools.selfcheck.cases import Case
from kernels_bench_tools.selfcheck.series import make_draw

WARM_UP_SECONDS = 0.05
"""The device has been busy before."""
MAX_SPACERS = 7


def time_as_recorded(case: Case, device: str, seed: int) -> Latency:
    """Return the latency that a record of this case would have."""
    return measure(case.function, case.input_sets(device, seed, CUDA_INPUT_SETS), device).latency


def time_afresh(case: Case, device: str, source: np.random.Generator, calls: int) -> list[float]:
    """Return the microseconds of ``calls`` calls of a case, with inputs that are allocated for them.

    How fast a card's memory is depends on the address: two buffers may differ by 1 % for as long as they
    are kept. Up to ``MAX_SPACERS`` others of the same sizes are kept meanwhile, so that an allocator does not hand
    out the same again; three input sets are gone round, as for a record.

    Args:
        case: What is timed.
        device: Where.
        source: Decides about addresses and values.
        calls: How many are timed.
    """
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # or the buffers of the case before would be used again
    _spacers = case.input_sets(device, 0, int(source.integers(MAX_SPACERS + 1)))
    first, *more = case.input_sets(device, int(source.integers(2**31)), CUDA_INPUT_SETS)
    draw = make_draw(case.function, first, device, more_inputs=more, warm_up_seconds=WARM_UP_SECONDS)
    return draw(calls)
