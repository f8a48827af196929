"""Compare outputs with the formula in float64, and with torch's operator in the same dtype.

The error that is allowed at an element is the operator's tolerance, plus the change of the result when the inputs
are rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.correctness.errors import (
    ErrorStats,
    OutputComparison,
    OutputErrors,
    WrongResultError,
)
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, tensors_of

SENSITIVITY = 8.0
"""Allowed error as a multiple of the change that one float32 rounding of the inputs causes."""
_ROUNDING = 2.0**-23


class _Expected(NamedTuple):
    """The reference of a slice of one output, and the error that is allowed at each element."""

    values: Tensor
    allowed: Tensor


def compare(output: Any, operator: Operator, inputs: Inputs) -> OutputComparison:
    """Return the errors of ``output``, and of the baseline if the operator has one that runs here.

    Raises ``WrongResultError`` if an output is missing, has another dtype, shape or device, or has NaN.
    """
    actual = require_outputs(output, operator, inputs)
    theirs = _baseline(operator, inputs)
    compared = [
        OutputErrors(
            found=ErrorStats(),
            baseline=None if theirs is None else ErrorStats(),
            eps=torch.finfo(tensor.dtype).eps,
            name=kind.name if len(operator.outputs) > 1 else "",
        )
        for kind, tensor in zip(operator.outputs, actual, strict=True)
    ]
    for index, inputs_slice in operator.slices(inputs):
        for number, expected in enumerate(_expected(operator, inputs, inputs_slice)):
            errors = compared[number]
            errors.found.add(_slice_of(actual[number], index, expected.values), *expected)
            if theirs is not None and errors.baseline is not None:
                try:
                    errors.baseline.add(theirs[number][index].double(), *expected)
                except WrongResultError:
                    errors.baseline = None  # the baseline itself cannot be compared here
    for errors, tensor in zip(compared, actual, strict=True):
        if errors.found.elements != tensor.numel():
            raise WrongResultError(f"it returned {tensor.numel()} elements, expected {errors.found.elements}")
    return OutputComparison(tuple(compared))


def is_plausible(
    output: Any, operator: Operator, inputs: Inputs, choose: Callable[[int], bool] | None = None
) -> bool:
    """Return whether an output follows from the inputs, apart from lost digits; cheaper than ``compare``.

    ``choose`` selects the slices to compare by number; all by default.
    """
    try:
        actual = require_outputs(output, operator, inputs)
        for number, (index, inputs_slice) in enumerate(operator.slices(inputs)):
            if choose is not None and not choose(number):
                continue
            for tensor, expected in zip(actual, _expected(operator, inputs, inputs_slice), strict=True):
                errors = ErrorStats()
                errors.add(_slice_of(tensor, index, expected.values), *expected)
                if not errors.plausible:
                    return False
    except WrongResultError:
        return False
    return True


def require_outputs(output: Any, operator: Operator, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of an output; raise ``WrongResultError`` if their number or kind is wrong."""
    kinds = operator.outputs
    found = tensors_of(output) if len(kinds) > 1 else (output,)
    if len(found) != len(kinds):
        raise WrongResultError(f"it returned {len(found)} outputs, expected {len(kinds)}")
    for kind, value in zip(kinds, found, strict=True):
        _require_kind(value, kind, inputs, "" if len(kinds) == 1 else f"its output {kind.name!r}")
    return found


def _require_kind(value: Any, kind: Output, inputs: Inputs, name: str) -> None:
    """Raise unless ``value`` is a plain tensor of the expected dtype, on the inputs' device."""
    if type(value) not in (Tensor, Parameter):
        subject = f"{name} is a" if name else "it returned"
        raise WrongResultError(f"{subject} {type(value).__name__}, expected a tensor")
    owner = f"{name}: its" if name else "its"
    for attribute, expected in (("dtype", kind.dtype_for(inputs)), ("device", inputs[0].device)):
        if getattr(value, attribute) != expected:
            raise WrongResultError(f"{owner} {attribute} is {getattr(value, attribute)}, expected {expected}")


def _baseline(operator: Operator, inputs: Inputs) -> tuple[Tensor, ...] | None:
    """Return torch's result, computed on a copy where the operator works in place."""
    if operator.baseline is None:
        return None
    copies = (value.clone() if number in operator.in_place else value for number, value in enumerate(inputs))
    try:
        return tensors_of(operator.baseline(*copies))
    except (RuntimeError, NotImplementedError):  # torch has no such operator for this dtype and device
        return None


def _expected(operator: Operator, inputs: Inputs, inputs_slice: Inputs) -> Iterator[_Expected]:
    """Yield the reference and the allowed errors of a slice, for each output.

    Inputs such as a row whose mean is far from 0 magnify rounding errors in float32. By how much is measured: the
    reference is computed again with rounded inputs.
    """
    exact = tuple(_in_float64(value) for value in inputs_slice)
    expected = tensors_of(operator.reference(*exact))
    moved = tensors_of(operator.reference(*(_rounded_once(value) for value in exact)))
    for kind, values, other in zip(operator.outputs, expected, moved, strict=True):
        slack = SENSITIVITY * (other - values).abs().max().item() if values.numel() else 0.0
        tolerance = operator.tolerance_of(kind, inputs)
        yield _Expected(values, values.abs() * tolerance.rtol + tolerance.atol + slack)


def _slice_of(output: Tensor, index: Any, expected: Tensor) -> Tensor:
    try:
        part = output[index]
    except IndexError as error:
        raise WrongResultError(f"it returned shape {tuple(output.shape)}, without part {index}") from error
    if part.shape != expected.shape:
        raise WrongResultError(
            f"it returned shape {tuple(output.shape)}; its part {index} has {tuple(part.shape)}, "
            f"expected {tuple(expected.shape)}"
        )
    return part.double()


def _in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _rounded_once(value: Any) -> Any:
    """Move every element of a float64 tensor by one float32 rounding, alternately up and down."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    signs = torch.ones(value.numel(), dtype=value.dtype, device=value.device)
    signs[::2] = -1
    return value * (1 + _ROUNDING * signs.view(value.shape))
