"""Operators as data: the formula, its workloads and its tolerances; what calling an implementation may raise."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from kernels_bench_tools.errors import KbtError, OperatorError, Unsupported
from kernels_bench_tools.measure.project_operators import project_operators, shown
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.hub import LEFT_OUT
from kernels_bench_tools.records.model import DERIVED, model_files, read_model_tasks
from kernels_bench_tools.records.record import Failure, Flag, Status, Work
from kernels_bench_tools.records.request import RANDOM, USUAL_SETS
from kernels_bench_tools.records.settings import OPERATORS, operator_modules
from kernels_bench_tools.text.words import did_you_mean

Inputs = tuple[Any, ...]
"""The positional arguments of an implementation: tensors first, then any other values."""

_DEVICE_ERRORS: Any = getattr(torch, "AcceleratorError", ())  # of torch 2.8 and later

Outputs: TypeAlias = Tensor | tuple[Tensor, ...]
"""The result of an implementation: one tensor, or a tuple of tensors."""

Accept: TypeAlias = Callable[[Inputs, tuple[Tensor, ...], tuple[Tensor, ...]], bool | Tensor]
"""Whether outputs are right, or where, given the inputs (in float64), the outputs, and those of the reference."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    name: str
    """Unique within its operator, over all sets."""
    axes: Mapping[str, int | bool | str]
    """In the order of the operator's axes."""
    dtype: str
    """Name of a torch dtype, such as ``"bfloat16"``."""
    group: str = ""
    """The function, for an operator of several, such as ``"SwiGLU"``."""
    set: str = ""
    """The workload set that it is from; set by :meth:`Operator.workloads`."""
    mode: str = ""
    """``bwd`` or ``fwd_bwd``; empty for the forward pass."""
    seed: int = 0

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def describe(self, device: str) -> dict[str, Any]:
        """Return the ``wl`` of a record, for a device of this kind."""
        named = {"name": self.name, "set": self.set, "group": self.group, "mode": self.mode}
        given = {key: value for key, value in named.items() if value}
        return {**given, **self.axes, "dtype": self.dtype, "device": device, "seed": self.seed}


@dataclass(frozen=True)
class Tolerance:
    """Allowed error at every element: ``atol + rtol * |reference|``."""

    rtol: float
    atol: float
    mean: float = float("inf")
    """Allowed mean error, as a multiple of that of torch's operator, except on edge cases: where the error at an element may be
    larger than that of a lower precision in parts of the computation."""
    products: float = 0.0
    """By this share the operands of products may be rounded: what that changes at an element is allowed, too."""
    small: float = 0.0
    """Root mean square of a slice of the outputs below which ``atol`` is smaller, in proportion; 0 if it stays as it is."""


SMALL = 2.0**-4
"""``small`` of the tolerances that an operator has unless it has one of its own."""


def dtype_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance for rounding errors of this type.

    Half-precision results that were computed in float32 are rounded once, by ``eps / 2``; 2 eps allow one
    intermediate in half precision. Sums in float32 get 32 eps.
    """
    error = (2 if torch.finfo(dtype).bits <= 16 else 32) * torch.finfo(dtype).eps
    return Tolerance(rtol=error, atol=error)


def eps_of(dtype: torch.dtype) -> float:
    """Return the distance from 1 to the next number of this type; 0 for integers and booleans, which are not rounded."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def copy_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance for values that are moved and not computed: less than one rounding."""
    return Tolerance(rtol=eps_of(dtype) / 4, atol=torch.finfo(torch.float32).tiny)


def product_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the tolerance for sums of products, whose mean error is limited, too.

    One sum after another in float32 has 3 times that of torch, three products in bfloat16 for one in float32 18 times.
    """
    return replace(dtype_tolerance(dtype), mean=3.0 if torch.finfo(dtype).bits <= 16 else 8.0)


def one_slice(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield the whole inputs: for operators whose float64 reference fits in memory."""
    yield ..., inputs


def no_edge_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:  # noqa: ARG001
    yield from ()


@dataclass(frozen=True)
class Output:
    name: str = "out"
    dtype: str = ""
    """Name of its torch dtype, or of the reference's argument that has the same one; the first input's if empty."""
    tolerance: Callable[[torch.dtype], Tolerance] | None = None
    """Its tolerance, given the first input's dtype; by default the operator's, given its own dtype."""
    shape: Callable[[Inputs], Sequence[int]] = lambda inputs: inputs[0].shape
    """Its shape for these inputs; the first input's unless given. A backward mode makes its gradient in this shape."""
    written: Callable[[Inputs], int] | None = None
    """Bytes of it that a call writes, for an output that is an overwritten input; all unless given."""
    slack: float = 0.0
    """How much an integer may differ, such as 1 for codes of a quantization; equal to the reference's unless given."""
    accept: Accept | None = None
    """Decides instead of a comparison with the reference: which of several that tie is chosen, numbers that are random."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator, whose implementations are called with ``inputs(...)`` and return a tensor, or a tuple of ``outputs``."""

    name: str
    title: str
    axes: tuple[str, ...]
    workload_sets: Mapping[str, Sequence[Workload]]
    """Name to workloads: ``default``, ``large`` and ``decode`` for accelerators, ``cpu``, ``smoke``, and others."""
    inputs: Callable[[Workload, str, int], Inputs]
    """Make random inputs for a workload, on a device, from a seed."""
    reference: Callable[..., Outputs]
    """The formula; called with floating-point tensors in float64."""
    flops: Callable[[Inputs], int]
    outputs: tuple[Output, ...] = (Output(),)
    slices: Callable[[Inputs], Iterable[tuple[Any, Inputs]]] = one_slice
    """Yield pairs of an index and the inputs from which ``output[index]`` of every output follows; together they
    cover the outputs. A list has an index for each output. The reference is computed slice by slice, to need little
    memory."""
    edge_cases: Callable[[Workload, Inputs], Iterable[tuple[str, Inputs]]] = no_edge_cases
    """Yield names and inputs that must be correct too, given ``smaller(workload)`` and its inputs."""
    tolerance: Callable[[torch.dtype], Tolerance] = field(default=dtype_tolerance)
    baseline: Callable[..., Outputs] | None = None
    """Torch's operator, called like an implementation; errors are compared with its error."""
    smaller: Callable[[Workload], Workload] = lambda workload: workload
    """Return a workload that takes the same path through a kernel and is cheap to check many times."""
    multiples: Mapping[str, int] = field(default_factory=dict)
    """Axis to the number of which its sizes are multiples, where shapes are drawn: by the judge up to the size that ``smaller``
    has, and for sets ``random:``, if inputs can be made and torch's operator is right. 1 unless given; it stays as it is if 0."""
    fit: Callable[[Mapping[str, Any]], bool] = lambda _: True
    """Whether drawn sizes fit together, where those of one axis depend on another's."""
    nonfinite: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """``nan``, ``inf`` and ``-inf`` to the positions of inputs in which it must have the results of the reference."""
    gradients: tuple[int, ...] = ()
    """Positions of the inputs that get gradients; empty if there is no backward mode."""
    gradient_slices: Callable[[Inputs], Iterable[tuple[Any, Inputs]]] = one_slice
    """Like ``slices``, for gradients: of the inputs followed by the outputs' gradients."""
    backward_flops: float = 2.0
    """Operations of a backward pass relative to a forward pass."""
    unread: tuple[int, ...] = ()
    """Positions of the inputs that are not counted as read."""
    backward_unread: tuple[int, ...] = ()
    """The same for a backward pass."""
    partly_read: Callable[[Inputs], Mapping[int, int]] = lambda _: {}
    """Return the bytes that a call reads of inputs of which it needs a part, such as rows of a table, by position."""
    parameters: tuple[int, ...] = ()
    """Positions of the inputs that do not change from call to call in a model: weights and tables."""
    fixed: tuple[int, ...] = ()
    """Positions of others that stay as they are between timed calls, because parts of them exchanged would be no inputs: what
    describes a batch. They are new in each call of a model, so that nothing is prepared of them."""
    whole_rows: tuple[int, ...] = ()
    """Positions of those whose rows change places between timed calls, and on a CPU their columns, because elements of another
    row could not be theirs."""
    renew: Callable[[Inputs, torch.Generator], Inputs] | None = None
    """Make other inputs of the same kind, shapes and dtypes, for the next timed call; where elements may not change places:
    of matrices that have to be invertible or symmetric, of sorted keys."""
    layouts: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Other layouts that models use, by name: group to the fields above that have other values. Groups that are not
    named have no workloads in the layout."""
    precisions: Mapping[str, Callable[..., Outputs]] = field(default_factory=dict)
    """Precisions below the inputs' that an implementation may declare, by name: the reference, rounded where it rounds."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Group to the fields above that have other values for its workloads."""
    in_place: bool = False
    """Whether the implementation may overwrite inputs that are no parameters, and return them; see :meth:`adapted`."""
    rounded: Callable[..., Outputs] | None = None
    """The declared one of ``precisions``."""
    declared: tuple[Flag, ...] = ()
    """Of all results: what is known of the operator's inputs and outputs, and what the implementation declares."""

    def adapted(
        self, *, layout: str = "", in_place: bool = False, precision: str = "", prepared: bool = False
    ) -> Operator:
        """Return the operator for an implementation that declares this; the options are those of ``run_benchmark``."""
        changed = self._in_layout(layout) if layout else self
        if precision:
            self._require("precision", precision, self.precisions)
        flags = {Flag.IN_PLACE: in_place, Flag.APPROXIMATE: precision, Flag.PREPARED: prepared}
        return replace(
            changed,
            in_place=in_place,
            rounded=self.precisions[precision] if precision else None,
            declared=(*self.declared, *(flag for flag, given in flags.items() if given)),
        )

    def _in_layout(self, layout: str) -> Operator:
        self._require("layout", layout, self.layouts)
        groups = self.layouts[layout]
        names = {group: ", ".join(filter(None, (group, layout.replace("_", " ")))) for group in groups}
        return replace(
            self,
            workload_sets={
                name: [
                    replace(workload, name=f"{workload.name}_{layout}", group=names[workload.group])
                    for workload in workloads
                    if workload.group in names
                ]
                for name, workloads in self.workload_sets.items()
            },
            variants={names[group]: {**self.variants.get(group, {}), **groups[group]} for group in groups},
        )

    def _require(self, option: str, value: str, known: Collection[str]) -> None:
        if value not in known:
            expected = f"One of {', '.join(known)}" if known else f"No {option}="
            hint = did_you_mean(value, known)
            raise OperatorError(f"operator {self.name}", f"has no {option} {value!r}", expected, hint)

    def may_overwrite(self, number: int) -> bool:
        return self.in_place and self.changes(number)

    def changes(self, number: int) -> bool:
        return number not in self.parameters and number not in self.fixed

    def for_workload(self, workload: Workload) -> Operator:
        """Return the operator with the variant of the workload's group, if there is one."""
        variant = self.variants.get(workload.group)
        return self if variant is None else replace(self, **variant, variants={})

    def dtype_of(self, output: Output, inputs: Inputs) -> torch.dtype:
        if not output.dtype:
            return inputs[0].dtype
        found = getattr(torch, output.dtype, None)
        names = [] if isinstance(found, torch.dtype) else argument_names(self.reference)
        if output.dtype in names[: len(inputs)]:
            found = getattr(inputs[names.index(output.dtype)], "dtype", None)
        if not isinstance(found, torch.dtype):
            what = f"has the dtype {output.dtype!r} for its output {output.name!r}"
            expected = f"A dtype of torch, or a tensor among the reference's arguments ({', '.join(names)})"
            raise OperatorError(f"operator {self.name}", what, expected)
        return found

    def tolerance_of(self, output: Output, inputs: Inputs) -> Tolerance:
        """Return the tolerance of one of the outputs for these inputs; a declared precision may have any mean error."""
        dtype = self.dtype_of(output, inputs)
        if output.tolerance is not None:
            found = output.tolerance(inputs[0].dtype)
        elif eps_of(dtype):
            found = self.tolerance(dtype)
            if self.tolerance in (dtype_tolerance, product_tolerance):
                found = replace(found, small=SMALL)
        else:
            found = Tolerance(rtol=0.0, atol=max(output.slack, torch.finfo(torch.float32).tiny))
        return replace(found, mean=float("inf")) if self.rounded else found

    def default_sets(self, device: str) -> str:
        """Return the default workload sets of a kind of device, comma-separated."""
        return self.own_sets(USUAL_SETS["cpu" if device == "cpu" else "cuda"])

    def own_sets(self, names: Iterable[str]) -> str:
        """Return those of the workload sets that this operator has, comma-separated: a build names those of several."""
        can_draw = any(self.multiples.get(axis, 1) for axis in self.axes)
        known = (
            *self.workload_sets,
            *(name for name in names if can_draw and name.strip().startswith(RANDOM)),
        )
        return ",".join(name for name in map(str.strip, names) if name in known)

    def workloads(self, names: str, only: Mapping[str, Any] | None = None) -> list[Workload]:
        """Return the workloads of sets, comma-separated, in order; of those, with these values of an axis only."""
        names_of_all = Counter(workload.name for given in self.workload_sets.values() for workload in given)
        if double := [name for name, count in names_of_all.items() if count > 1]:
            what = f"has several workloads named {double[0]!r}, whose records would replace each other"
            raise OperatorError(f"operator {self.name}", what, "Names that are unique over all workload sets")
        wanted = list(dict.fromkeys(filter(None, map(str.strip, names.split(",")))))
        for name in wanted:
            self._require("workload set", name, self.workload_sets)
        found = [replace(workload, set=name) for name in wanted for workload in self.workload_sets[name]]
        conditions = []
        for axis, value in (only or {}).items():
            self._require("axis", axis, self.axes)
            conditions.append(f"{axis}={value!r}")
            values = value if isinstance(value, tuple | list | set | frozenset) else (value,)
            found = [workload for workload in found if workload.axes[axis] in values]
        if not found:
            missing = f"workload with {', '.join(conditions)} in these sets"
            raise OperatorError(
                f"operator {self.name}",
                f"has no {missing}" if conditions else "was given no workload set",
                "At least one workload",
                "The operator's module lists its workloads",
            )
        return found

    def made_inputs(self, workload: Workload, device: str, seed: int) -> Inputs:
        """Return ``inputs(...)``, each tensor with memory of its own; ``OperatorError`` for other values than it may have."""
        found = self.call("inputs", self.inputs, workload, device, seed)
        expected = "A tuple: tensors first, then numbers, strings, None, or tuples of these"
        wrong = "" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
        if not wrong:
            first = found[0] if found else None
            wrong = (
                "" if isinstance(first, Tensor) else f"a {type(first).__name__} first" if found else "nothing"
            )
        for number, value in enumerate(() if wrong else found):
            if type(value) is not Parameter and not _is_input(value):
                wrong = f"a {type(value).__name__} as input {number + 1}"
        if wrong:
            raise OperatorError(self._place(self.inputs), f"`inputs` returned {wrong}", expected)
        return tuple(value.clone() if is_part(value) else value for value in found)

    def call(self, name: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function of this operator: an exception is an error of its module, with its line."""
        try:
            return function(*given)
        except Exception as error:
            raise self._mistake(name, function, error) from error

    def each(self, name: str, function: Callable[..., Iterable[Any]], *given: Any) -> Iterator[Any]:
        """Yield what a function of this operator does; see :meth:`call`."""
        try:
            yield from function(*given)
        except Exception as error:
            raise self._mistake(name, function, error) from error

    def _mistake(self, name: str, function: Callable[..., Any], error: Exception) -> Exception:
        # An error of a device is found by whichever call comes next.
        if (
            isinstance(error, (KbtError, CallError, _DEVICE_ERRORS))
            or failed_status(error) is not Status.ERROR
        ):
            return error
        said = f"{type(error).__name__}: {failure_of(error).msg}"
        return OperatorError(self._place(function, error), f"`{name}` raised {said}")

    def _place(self, function: Callable[..., Any], error: Exception | None = None) -> str:
        """Return the file of one of this operator's functions, and the line where it begins, or raised this."""
        while inner := getattr(function, "__wrapped__", None) or getattr(function, "func", None):
            function = inner
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename.startswith("<"):
            return f"operator {self.name}"
        frames = traceback.extract_tb(error.__traceback__) if error else []
        lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
        return f"{shown(Path(code.co_filename))}:{lines[-1] if lines else code.co_firstlineno}"

    def work(self, inputs: Inputs, output: Outputs) -> Work:
        """Count the least work of one call: what is needed of each tensor read or written once, and the FLOPs."""
        read = dict(enumerate(map(size_in_bytes, inputs))) | dict(self.partly_read(inputs))
        written = dict(enumerate(map(size_in_bytes, tensors_of(output)))) | {
            position: kind.written(inputs) for position, kind in enumerate(self.outputs) if kind.written
        }
        return Work(
            bytes_read=sum(size for position, size in read.items() if position not in self.unread),
            bytes_written=sum(written.values()),
            flops=int(self.call("flops", self.flops, inputs)),
        )


def model_sets(operator: str, axes: Sequence[str], name: Callable[..., str]) -> dict[str, list[Workload]]:
    """Return a workload set for each model that calls an operator; ``name`` gets the axes of a workload by name."""
    sets = {}
    for model in model_files(DERIVED):
        found = [
            Workload(
                name=f"{model}_{phase.name}_{name(**called.axes)}",
                axes={axis: called.axes[axis] for axis in axes},
                dtype=called.dtype,
                group=called.group,
            )
            for phase in read_model_tasks(model).phases
            for task in phase.tasks
            for called in task.workloads
            if called.operator == operator
        ]
        if found:
            sets[model] = found
    return sets


def _is_input(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(not isinstance(one, Tensor) and _is_input(one) for one in value)
    if isinstance(value, Module):  # of others the reference would not get the parameters in float64
        return type(value).__module__.startswith(f"{__package__.partition('.')[0]}.")
    return value is None or type(value) in (Tensor, bool, int, float, str, torch.dtype)


def is_part(value: Any) -> bool:
    """Return whether a dense tensor is a part of a larger memory, of which changes between calls would move the rest, too."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.is_contiguous():
        return False
    return value.untyped_storage().nbytes() != value.numel() * value.element_size()


def argument_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(signature(function).parameters)
    except ValueError:  # of some built-in functions
        return []


def tensors_of(output: Any) -> tuple[Any, ...]:
    """Return what a tuple or a list has, a named one without calling its methods; else the output alone."""
    if issubclass(type(output), tuple):
        return tuple.__getitem__(output, slice(None))
    return tuple(output) if type(output) is list else (output,)


def size_in_bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def built_in_modules() -> dict[str, str]:
    """Return the dotted names of the modules of the built-in operators, by the operators' names."""
    found = operator_modules(PACKAGE_FOLDER / OPERATORS)
    inside = {name: path.relative_to(PACKAGE_FOLDER.parent) for name, path in found.items()}
    return {name: ".".join(path.with_suffix("").parts) for name, path in inside.items()}


def find_operator(name: str, folder: str = "") -> Operator:
    """Return the operator of the module ``<name>.py`` in a project's folder, else of the built-in one."""
    built_in = built_in_modules()
    # The folder of a checkout of this package may be the package's own.
    is_own = bool(folder) and Path(folder).resolve() != (PACKAGE_FOLDER / OPERATORS).resolve()
    own = project_operators(folder) if is_own else None
    if own and name in own.paths:
        return _checked(own.load(name), name, shown(own.paths[name]))
    if name in built_in:
        return import_module(built_in[name]).OPERATOR
    known = sorted({*built_in, *(own.paths if own else ())})
    places = [shown(own.folder)] if own else []
    hint = did_you_mean(name, known)
    if not folder and not hint:
        remedy = f"If it is the project's own, write `outputs={name}.jsonl` after the cell's id"
        raise OperatorError(f"operator {name!r}", "is not built in", "", remedy)
    raise OperatorError(
        f"operator {name!r}",
        f"is not known: there is no such module in {' or '.join([*places, 'kernels_bench_tools/operators'])}",
        "" if hint else f"One of {', '.join(known)}",
        hint or f"`kbt new operator {name}` adds it",
    )


def load_operators(folder: str) -> None:
    """Import all operators, built in and of a project's folder; those that cannot be imported are left out."""
    own = operator_modules(Path(folder)) if folder else {}
    for name in {*own, *built_in_modules()}:
        with suppress(Exception):  # is told to the cells that need it
            find_operator(name, folder)


def _checked(found: Any, name: str, where: str) -> Operator:
    expected = f"OPERATOR = Operator(name={name!r}, ...), with the name of the module"
    if not isinstance(found, Operator):
        what = "defines no OPERATOR" if found is None else f"OPERATOR is of type {type(found).__name__}"
        raise OperatorError(where, what, expected)
    if found.name != name:
        raise OperatorError(where, f"OPERATOR has the name {found.name!r}", expected)
    return found


class CallError(Exception):
    """A call failed in the process of the implementation."""

    def __init__(self, status: Status, failure: Failure) -> None:
        super().__init__(failure.msg)
        self.status, self.failure = status, failure


def failed_status(error: Exception) -> Status:
    if isinstance(error, CallError) and not error.status.ran:  # an implementation can raise it, too
        return error.status
    # A library of the stable ABI can only raise a plain RuntimeError.
    if isinstance(error, Unsupported | NotImplementedError) or LEFT_OUT in _said(error):
        return Status.UNSUPPORTED
    # The CPU's allocator raises a plain RuntimeError.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in _said(error):
        return Status.OOM
    return Status.ERROR


def failure_of(error: Exception) -> Failure:
    if isinstance(error, CallError):
        return error.failure
    message = " ".join(_said(error).split())[:500]
    # What stands for bytes in names of files is no valid text.
    return Failure(type=type(error).__name__, msg=message.encode("utf-8", "backslashreplace").decode())


def _said(error: Exception) -> str:
    try:
        return str(error)
    except Exception as other:  # of a class of the implementation's
        return f"its text cannot be read, which raises {type(other).__name__}"
