"""Operators as data: what is computed, on which workloads, and how good a result must be."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.records import Work

Inputs = tuple[Any, ...]
"""The positional arguments of an implementation: tensors, and numbers where an operator has any."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One problem size.

    Args:
        name: Unique within its operator; what charts and tables show.
        axes: Axis name to extent, in the order of the operator's axes.
        dtype: torch's name of the data type, such as ``"bfloat16"``.
        seed: Where the random inputs start; the same seed gives the same inputs on the same device.
    """

    name: str
    axes: Mapping[str, int]
    dtype: str
    seed: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The data type as torch's object."""
        return getattr(torch, self.dtype)

    def describe(self, device: str) -> dict[str, Any]:
        """Return the workload as a record's ``wl``, for a device of this kind."""
        return {"name": self.name, **self.axes, "dtype": self.dtype, "device": device, "seed": self.seed}


@dataclass(frozen=True)
class Tolerance:
    """An error of ``atol + rtol * |reference|`` is allowed at every element."""

    rtol: float
    atol: float


def dtype_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the error that rounding excuses in a result of this type, for values around 1.

    A half-precision result that was computed in float32 is rounded once, by half a unit in the last
    place (``eps / 2``); two units leave room for one intermediate kept in half precision. A float32
    result was also summed in float32, so it gets 32.
    """
    units = 2 if torch.finfo(dtype).bits <= 16 else 32
    return Tolerance(rtol=units * torch.finfo(dtype).eps, atol=units * torch.finfo(dtype).eps)


def whole(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield the inputs as one piece: for operators whose float64 reference fits in memory."""
    yield ..., inputs


def no_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:  # noqa: ARG001
    """Yield nothing: for operators that have no hard cases yet."""
    yield from ()


def same_size(workload: Workload) -> Workload:
    """Return the workload itself: for operators whose workloads are all small."""
    return workload


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What every implementation of one operator has in common.

    An implementation is called with ``inputs(...)`` as its positional arguments and returns one tensor.
    """

    name: str
    """As in file names: ``layer_norm``."""
    title: str
    axes: tuple[str, ...]
    workload_sets: Mapping[str, Sequence[Workload]]
    """``default`` for accelerators, ``cpu``, ``smoke`` and whatever else the operator offers."""
    inputs: Callable[[Workload, str, int], Inputs]
    """Make random inputs for a workload on a device from a seed."""
    reference: Callable[..., Tensor]
    """The formula, called with inputs that were converted to float64."""
    flops: Callable[[Inputs], int]
    """Count the floating-point operations that the formula needs."""
    pieces: Callable[[Inputs], Iterable[tuple[Any, Inputs]]] = whole
    """Split inputs so that ``output[index]`` depends on one piece only; the pieces cover the output."""
    cases: Callable[[Workload, Inputs], Iterable[tuple[str, Inputs]]] = no_cases
    """Name and make hard inputs that must also come out right, from ``smaller(workload)`` and its inputs."""
    tolerance: Callable[[torch.dtype], Tolerance] = field(default=dtype_tolerance)
    baseline: Callable[..., Tensor] | None = None
    """Torch's own operator, called like an implementation: its error in the same type is the yardstick."""
    smaller: Callable[[Workload], Workload] = same_size
    """Return a workload that takes the same path through a kernel and is cheap to judge many times."""
    in_place: tuple[int, ...] = ()
    """Positions of the inputs that an implementation may overwrite, and its output share memory with."""

    @staticmethod
    def default_set(device: str) -> str:
        """Return the name of the workload set for a device of this kind."""
        return "cpu" if device == "cpu" else "default"

    def workloads(self, name: str) -> Sequence[Workload]:
        """Return the workload set of this name.

        Raises:
            OperatorError: The operator has no such set.
        """
        if name not in self.workload_sets:
            raise OperatorError(
                f"operator {self.name}",
                f"has no workload set {name!r}",
                f"One of {', '.join(self.workload_sets)}",
                _did_you_mean(name, self.workload_sets),
            )
        return self.workload_sets[name]

    def work(self, inputs: Inputs, output: Tensor) -> Work:
        """Count what one call must at least do: each tensor read or written once, and the FLOPs."""
        return Work(
            bytes_read=sum(size_in_bytes(value) for value in inputs),
            bytes_written=size_in_bytes(output),
            flops=self.flops(inputs),
        )


def size_in_bytes(value: Any) -> int:
    """Return the bytes of a tensor's elements; 0 for anything else."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def find_operator(name: str) -> Operator:
    """Return the operator that the module ``kernels_bench_tools.operators.<name>`` defines.

    Raises:
        OperatorError: There is no such module.
    """
    package = "kernels_bench_tools.operators"
    known = [module.name for module in pkgutil.iter_modules(import_module(package).__path__)]
    if name not in known:
        raise OperatorError(
            f"operator {name!r}",
            "is not known",
            f"One of {', '.join(sorted(known))}",
            _did_you_mean(name, known) or f"Add it as kernels_bench_tools/operators/{name}.py",
        )
    return import_module(f"{package}.{name}").OPERATOR


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {nearest[0]!r}?" if nearest else ""
