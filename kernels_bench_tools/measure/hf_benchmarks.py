"""Workloads of classes derived from ``kernels.benchmark.Benchmark``: a module's arguments are what ``setup`` leaves in an instance."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kernels_bench_tools.errors import OperatorError, Unsupported
from kernels_bench_tools.measure.operator import SMALL, Tolerance, dtype_tolerance

THEIR_ATOL = 1e-2
"""With which ``kernels benchmark`` compares; here, of smaller outputs than 1, a hundredth of their root mean square."""
_BENCHMARK, _OUT = "benchmark_", "out"


def their_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return that of ``kernels benchmark``, or that of rounding where it is larger."""
    own = dtype_tolerance(dtype)
    atol = max(own.atol, THEIR_ATOL)
    return replace(own, atol=atol, small=min(SMALL * atol / own.atol, 1.0))


def find_classes(module: Any) -> dict[str, type]:
    """Return the benchmarks that a module defines, by name."""
    from kernels.benchmark import Benchmark

    values = vars(module).items()
    kinds = {name: kind for name, kind in values if isinstance(kind, type) and issubclass(kind, Benchmark)}
    return {name: kind for name, kind in kinds.items() if kind.__module__ == module.__name__}


def workload_names(module: Any) -> Iterator[str]:
    """Yield ``Class.workload`` for each method that is to be timed."""
    for name, kind in sorted(find_classes(module).items()):
        methods = [one for one in dir(kind) if one.startswith(_BENCHMARK) and callable(getattr(kind, one))]
        yield from (f"{name}.{method.removeprefix(_BENCHMARK)}" for method in methods)


class HfWorkload:
    """One workload; ``draw`` returns the tensors of a new instance, which ``run`` and ``verify`` are called with."""

    def __init__(self, module: Any, name: str, device: str) -> None:
        class_name, _, self.name = name.rpartition(".")
        self._class, self._device = find_classes(module)[class_name], device
        self.kernel: Any = None
        self._template = self._set_up()
        if not hasattr(self._template, f"verify_{self.name}"):
            raise OperatorError(name, f"has no verify_{self.name}, so nothing says what is correct")

    def _set_up(self) -> Any:
        instance: Any = self._class()
        instance.device = self._device
        random.seed(torch.initial_seed())
        getattr(instance, f"setup_{self.name}", instance.setup)()
        return instance

    def draw(self) -> list[dict[str, Any]]:
        found = vars(self._set_up()).items()
        return [{name: value for name, value in found if name != _OUT and _has_tensors(value)}]

    def _with(self, tensors: Mapping[str, Any]) -> Any:
        instance = copy(self._template)
        vars(instance).update(tensors)
        instance.kernel = self.kernel
        if isinstance(instance.out, Tensor):
            instance.out = torch.empty_like(instance.out)  # of an earlier call it could have the result
        return instance

    def run(self, tensors: Mapping[str, Any]) -> Tensor:
        instance = self._with(tensors)
        getattr(instance, _BENCHMARK + self.name)()
        if not isinstance(instance.out, Tensor):
            raise Unsupported(
                f"{_BENCHMARK}{self.name} leaves no tensor in self.out, which verify_{self.name} is compared with"
            )
        return instance.out

    def verify(self, tensors: Mapping[str, Any]) -> Tensor:
        found: Callable[[], Tensor] = getattr(self._with(tensors), f"verify_{self.name}")
        return found()


def _has_tensors(value: Any) -> bool:
    leaves = tree_leaves(value)
    return bool(leaves) and all(isinstance(leaf, Tensor) for leaf in leaves)


def load_kernel(reference: str) -> Any:
    """Return a kernel of the Hub, or the module in a folder, by its path."""
    from kernels_bench_tools.hub import get_kernel

    return get_kernel(
        f"./{reference}" if not reference.startswith("/") and Path(reference).is_dir() else reference
    )
