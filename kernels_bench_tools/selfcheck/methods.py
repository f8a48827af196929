"""What other tools' methods report for the same calls. Microseconds."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.utils.benchmark import Timer

from kernels_bench_tools.measure.operator import Inputs


def other_methods(function: Callable[..., Any], inputs: Inputs, device: str) -> dict[str, float]:
    """Return what other methods report; one that does not work for this call is left out.

    ``timer``: the median of five ``torch.utils.benchmark.Timer(...).timeit(1)``, by the host's clock.
    ``do_bench`` and ``do_bench_cudagraph``: medians of ``triton.testing``'s, on CUDA only.
    """

    def call() -> Any:
        return function(*inputs)

    found = {"timer": _timer_us(call)}
    if device.startswith("cuda"):
        try:
            from triton import testing
        except ImportError:
            return found
        methods = {"do_bench": testing.do_bench, "do_bench_cudagraph": testing.do_bench_cudagraph}
        for name, method in methods.items():
            try:
                found[name] = float(method(call, return_mode="median")) * 1e3
            except Exception:  # whatever a call does that a graph cannot hold: there is no number then
                torch.cuda.synchronize()
    return found


def _timer_us(call: Callable[[], Any]) -> float:
    timer = Timer(stmt="call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return median(timer.timeit(1).mean for _ in range(5)) * 1e6
