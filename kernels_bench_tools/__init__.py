"""Benchmarks that show which GPU kernel to use.

A notebook's cell measures with :func:`run_benchmark`, or a whole model with :func:`run_model`. A combine cell summarizes one operator with :func:`combine`, or
a suite of several with :func:`report_suite`. Names are imported on first use: the command never imports torch, and a
measuring cell never imports matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernels_bench_tools.errors import KbtError, Unsupported
from kernels_bench_tools.records.record import Record, Status

if TYPE_CHECKING:
    from kernels_bench_tools.hub import get_kernel
    from kernels_bench_tools.measure.harness import run_benchmark
    from kernels_bench_tools.measure.modules import run_module
    from kernels_bench_tools.measure.operator import Operator, Workload
    from kernels_bench_tools.models.effect import run_model
    from kernels_bench_tools.results.combine import combine
    from kernels_bench_tools.results.suite import report_suite

__version__ = "0.1.0"

__all__ = [
    "KbtError",
    "Operator",
    "Record",
    "Status",
    "Unsupported",
    "Workload",
    "combine",
    "get_kernel",
    "report_suite",
    "run_benchmark",
    "run_model",
    "run_module",
]

_LAZY = {
    "Operator": "kernels_bench_tools.measure.operator",
    "Workload": "kernels_bench_tools.measure.operator",
    "combine": "kernels_bench_tools.results.combine",
    "get_kernel": "kernels_bench_tools.hub",
    "report_suite": "kernels_bench_tools.results.suite",
    "run_benchmark": "kernels_bench_tools.measure.harness",
    "run_model": "kernels_bench_tools.models.effect",
    "run_module": "kernels_bench_tools.measure.modules",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
