"""Parts of workloads, for operators that say how theirs can be judged in little memory and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from kernels_bench_tools.measure.operator import Inputs, Workload

PIECE = 1 << 24
"""So many numbers are 134 MB in float64, and a reference holds a few tensors of them."""


def some_rows_at_a_time(inputs: Inputs) -> Iterator[tuple[slice, Inputs]]:
    """Yield as many rows as float64 holds in little memory, of every tensor among the inputs.

    Args:
        inputs: Tensors that all have the rows of the first one, (rows, columns), and anything else as it is.
    """
    rows = max(1, PIECE // inputs[0].shape[-1])
    for start in range(0, len(inputs[0]), rows):
        part = slice(start, start + rows)
        yield part, tuple(value[part] if isinstance(value, Tensor) else value for value in inputs)


def with_at_most(workload: Workload, **most: int) -> Workload:
    """Return the workload with each of these axes at most so long."""
    fewer = {axis: min(int(workload.axes[axis]), length) for axis, length in most.items()}
    return replace(workload, axes={**workload.axes, **fewer})
