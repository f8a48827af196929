"""Operators as data: what is computed, on which workloads, and how good a result must be."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.schema.record import Work
from kernels_bench_tools.text import did_you_mean

Inputs = tuple[Any, ...]
"""The positional arguments of an implementation: tensors first, then numbers, flags or names if it has any."""

ACCELERATOR_SETS = ("default", "large", "decode")
CPU_SETS = ("cpu",)


Outputs: TypeAlias = Tensor | tuple[Tensor, ...]
"""What an implementation returns: one tensor, or several in a tuple."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One problem size.

    Args:
        name: Unique within its operator, whatever the set; what charts and tables show.
        axes: Axis name to extent or setting, in the order of the operator's axes.
        dtype: torch's name of the data type, such as ``"bfloat16"``.
        group: What an operator of several functions computes here, such as ``"SwiGLU"``: only workloads of one
            group are compared with each other.
        set: The workload set that it was taken from; :meth:`Operator.workloads` says so.
        mode: ``bwd`` or ``fwd_bwd``; empty for the forward pass.
        seed: Where the random inputs start; the same seed gives the same inputs on the same device.
    """

    name: str
    axes: Mapping[str, int | bool | str]
    dtype: str
    group: str = ""
    set: str = ""
    mode: str = ""
    seed: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        """The data type as torch's object."""
        return getattr(torch, self.dtype)

    def describe(self, device: str) -> dict[str, Any]:
        """Return the workload as a record's ``wl``, for a device of this kind."""
        named = {"name": self.name, "set": self.set, "group": self.group, "mode": self.mode}
        told = {key: value for key, value in named.items() if value}
        return {**told, **self.axes, "dtype": self.dtype, "device": device, "seed": self.seed}


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


@dataclass(frozen=True)
class Output:
    """One of the tensors that an implementation returns.

    Args:
        name: What messages call it.
        dtype: torch's name of its data type; that of the first input if empty.
        tolerance: The error allowed in it, by the type of the first input; by default the operator's, by its own type.
    """

    name: str = "out"
    dtype: str = ""
    tolerance: Callable[[torch.dtype], Tolerance] | None = None

    def type_for(self, inputs: Inputs) -> torch.dtype:
        """Return its data type for these inputs."""
        found: torch.dtype = getattr(torch, self.dtype) if self.dtype else inputs[0].dtype
        return found


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What every implementation of one operator has in common.

    An implementation is called with ``inputs(...)`` as its positional arguments. It returns a tensor, or a tuple
    of them in the order of ``outputs`` where there are several.
    """

    name: str
    """As in file names: ``layer_norm``."""
    title: str
    axes: tuple[str, ...]
    workload_sets: Mapping[str, Sequence[Workload]]
    """``default``, ``large`` and ``decode`` for accelerators, ``cpu``, ``smoke``, and whatever else it offers."""
    inputs: Callable[[Workload, str, int], Inputs]
    """Make random inputs for a workload on a device from a seed."""
    reference: Callable[..., Outputs]
    """The formula, called with inputs whose floating-point tensors were converted to float64."""
    flops: Callable[[Inputs], int]
    """Count the floating-point operations that the formula needs."""
    outputs: tuple[Output, ...] = (Output(),)
    """What an implementation returns."""
    pieces: Callable[[Inputs], Iterable[tuple[Any, Inputs]]] = whole
    """Split inputs so that ``output[index]``, of every output, depends on one piece only and follows from it; the
    pieces cover the outputs."""
    cases: Callable[[Workload, Inputs], Iterable[tuple[str, Inputs]]] = no_cases
    """Name and make hard inputs that must also come out right, from ``smaller(workload)`` and its inputs."""
    tolerance: Callable[[torch.dtype], Tolerance] = field(default=dtype_tolerance)
    baseline: Callable[..., Outputs] | None = None
    """Torch's own operator, called like an implementation: its error in the same type is the yardstick."""
    smaller: Callable[[Workload], Workload] = same_size
    """Return a workload that takes the same path through a kernel and is cheap to judge many times."""
    gradients: tuple[int, ...] = ()
    """Positions of the inputs that a backward pass has gradients of; none where there is no backward mode."""
    gradient_pieces: Callable[[Inputs], Iterable[tuple[Any, Inputs]]] = whole
    """Like ``pieces``, for the gradients; of the inputs followed by the outputs' gradients."""
    backward_flops: float = 2.0
    """Operations of a backward pass, as a multiple of a forward one's."""
    unread: tuple[int, ...] = ()
    """Positions of the inputs whose values the result does not depend on: they are not counted as read."""
    backward_unread: tuple[int, ...] = ()
    """The same of the gradients."""
    in_place: tuple[int, ...] = ()
    """Positions of the inputs that an implementation may overwrite, and its output share memory with."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What differs for the workloads of a group: names of the fields above, and what they are there."""

    def form(self, workload: Workload) -> Operator:
        """Return the operator as it is for a workload: that of its group, where the group has a variant."""
        differing = self.variants.get(workload.group)
        return self if differing is None else replace(self, **differing, variants={})

    def allowed(self, kind: Output, inputs: Inputs) -> Tolerance:
        """Return the error that is allowed in one of the outputs for these inputs."""
        if kind.tolerance is not None:
            return kind.tolerance(inputs[0].dtype)
        return self.tolerance(kind.type_for(inputs))

    def default_sets(self, device: str) -> str:
        """Return the names of the workload sets for a device of this kind, comma-separated."""
        wanted = CPU_SETS if device == "cpu" else ACCELERATOR_SETS
        return ",".join(name for name in wanted if name in self.workload_sets)

    def workloads(self, names: str, only: Mapping[str, Any] | None = None) -> list[Workload]:
        """Return the workloads of sets, in order, each knowing its set.

        Args:
            names: Names of sets, comma-separated.
            only: Names of axes, and the value or values that a workload must have there.

        Raises:
            OperatorError: The operator has no such set or axis, or no workload is left.
        """
        found = []
        for name in filter(None, map(str.strip, names.split(","))):
            if name not in self.workload_sets:
                raise OperatorError(
                    f"operator {self.name}",
                    f"has no workload set {name!r}",
                    f"One of {', '.join(self.workload_sets)}, or several with commas between them",
                    did_you_mean(name, self.workload_sets),
                )
            found += [replace(workload, set=name) for workload in self.workload_sets[name]]
        return self._selected(found, only or {})

    def _selected(self, workloads: Sequence[Workload], only: Mapping[str, Any]) -> list[Workload]:
        unknown = [axis for axis in only if axis not in self.axes]
        if unknown:
            raise OperatorError(
                f"operator {self.name}",
                f"has no axis {unknown[0]!r}",
                f"One of {', '.join(self.axes)}",
                did_you_mean(unknown[0], self.axes),
            )
        wanted = {axis: _values(value) for axis, value in only.items()}
        found = [
            workload
            for workload in workloads
            if all(workload.axes[axis] in values for axis, values in wanted.items())
        ]
        if not found:
            told = ", ".join(f"{axis}={value!r}" for axis, value in only.items())
            raise OperatorError(
                f"operator {self.name}",
                f"has no workload with {told} in these sets" if told else "was given no workload set",
                "At least one workload",
                "Look into the operator's module for what there is",
            )
        return found

    def work(self, inputs: Inputs, output: Outputs) -> Work:
        """Count what one call must at least do: each tensor that matters read or written once, and the FLOPs."""
        return Work(
            bytes_read=sum(size_in_bytes(value) for n, value in enumerate(inputs) if n not in self.unread),
            bytes_written=sum(size_in_bytes(value) for value in tensors_of(output)),
            flops=self.flops(inputs),
        )


def tensors_of(output: Any) -> tuple[Any, ...]:
    """Return what an implementation returned as a tuple, also where it is one value."""
    return tuple(output) if type(output) in (tuple, list) else (output,)


def _values(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)


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
            did_you_mean(name, known, f"Add it as kernels_bench_tools/operators/{name}.py"),
        )
    return import_module(f"{package}.{name}").OPERATOR
