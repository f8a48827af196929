"""What an implementation returned against the formula in float64, and against torch's operator in the same type.

What is *allowed* at an element is the operator's tolerance plus what a float32 rounding of the inputs would change
in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.correctness.errors import Comparison, Errors, OutputErrors, WrongResultError
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, tensors_of

SENSITIVITY = 8.0
"""Errors up to this multiple of what one float32 rounding of the inputs changes are excused."""
_ROUNDING = 2.0**-23


@dataclass(frozen=True)
class _Expected:
    """A piece of one output as it should be."""

    values: Tensor
    allowed: Tensor


def compare(output: Any, operator: Operator, inputs: Inputs, *, baseline: bool = True) -> Comparison:
    """Return the errors of ``output``, and the baseline's if the operator has one that runs.

    Args:
        output: What an implementation returned.
        operator: Whose formula is the truth.
        inputs: What the output should follow from, unchanged by the implementation.
        baseline: Whether to judge torch's operator, too.

    Raises:
        WrongResultError: An output has another type, shape or device, or NaN, or one is missing.
    """
    actual = require_outputs(output, operator, inputs)
    theirs = _baseline(operator, inputs) if baseline else None
    judged = [
        OutputErrors(
            found=Errors(),
            baseline=None if theirs is None else Errors(),
            eps=torch.finfo(tensor.dtype).eps,
            name=kind.name if len(operator.outputs) > 1 else "",
        )
        for kind, tensor in zip(operator.outputs, actual, strict=True)
    ]
    for index, piece in operator.pieces(inputs):
        for number, expected in enumerate(_expected(operator, inputs, piece)):
            errors = judged[number]
            errors.found.add(_part(actual[number], index, expected.values), expected.values, expected.allowed)
            if theirs is not None and errors.baseline is not None:
                errors.baseline = _add_baseline(errors.baseline, theirs[number][index], expected)
    for errors, tensor in zip(judged, actual, strict=True):
        if errors.found.elements != tensor.numel():
            raise WrongResultError(f"it returned {tensor.numel()} elements, expected {errors.found.elements}")
    return Comparison(tuple(judged))


def is_plausible(
    output: Any, operator: Operator, inputs: Inputs, choose: Callable[[int], bool] | None = None
) -> bool:
    """Return whether an output follows from the inputs, lost digits aside; cheaper than ``compare``.

    Args:
        output: What an implementation returned.
        operator: Whose formula is the truth.
        inputs: What the output should follow from.
        choose: Called with each piece's number: whether to look at it; all by default.
    """
    try:
        actual = require_outputs(output, operator, inputs)
        for number, (index, piece) in enumerate(operator.pieces(inputs)):
            if choose is not None and not choose(number):
                continue
            for tensor, expected in zip(actual, _expected(operator, inputs, piece), strict=True):
                errors = Errors()
                errors.add(_part(tensor, index, expected.values), expected.values, expected.allowed)
                if not errors.plausible:
                    return False
    except WrongResultError:
        return False
    return True


def require_outputs(output: Any, operator: Operator, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of an output, as many and of such types as the operator has.

    Raises:
        WrongResultError: They are not.
    """
    kinds = operator.outputs
    found = tensors_of(output) if len(kinds) > 1 else (output,)
    if len(found) != len(kinds):
        raise WrongResultError(f"it returned {len(found)} outputs, expected {len(kinds)}")
    for kind, value in zip(kinds, found, strict=True):
        _require_kind(value, kind, inputs, "it" if len(kinds) == 1 else f"its output {kind.name!r}")
    return found


def _require_kind(value: Any, kind: Output, inputs: Inputs, called: str) -> None:
    """Raise unless ``value`` is a plain tensor of the expected type, where the inputs are."""
    if type(value) not in (Tensor, Parameter):
        told = "it returned" if called == "it" else f"{called} is a"
        raise WrongResultError(f"{told} {type(value).__name__}, expected a tensor")
    owner = "its" if called == "it" else f"{called}: its"
    for name, expected in (("dtype", kind.type_for(inputs)), ("device", inputs[0].device)):
        if getattr(value, name) != expected:
            raise WrongResultError(f"{owner} {name} is {getattr(value, name)}, expected {expected}")


def _baseline(operator: Operator, inputs: Inputs) -> tuple[Tensor, ...] | None:
    """Return torch's result, computed on a copy where the operator works in place."""
    if operator.baseline is None:
        return None
    copies = (value.clone() if number in operator.in_place else value for number, value in enumerate(inputs))
    try:
        return tensors_of(operator.baseline(*copies))
    except (RuntimeError, NotImplementedError):  # torch has no such operator for this type and device
        return None


def _add_baseline(errors: Errors, part: Tensor, expected: _Expected) -> Errors | None:
    """Add a piece of the baseline's output; None if the baseline itself cannot be compared here."""
    try:
        errors.add(part.double(), expected.values, expected.allowed)
    except WrongResultError:
        return None
    return errors


def _expected(operator: Operator, inputs: Inputs, piece: Inputs) -> Iterator[_Expected]:
    """Yield for each output what the piece should give, and the error that is allowed there.

    Some inputs magnify rounding (a row whose mean is far from 0, say), for any implementation that
    computes in float32. How much is measured: by moving the inputs by one rounding.
    """
    exact = tuple(_in_float64(value) for value in piece)
    expected = tensors_of(operator.reference(*exact))
    moved = tensors_of(operator.reference(*(_rounded_once(value) for value in exact)))
    for kind, values, other in zip(operator.outputs, expected, moved, strict=True):
        slack = SENSITIVITY * (other - values).abs().max().item() if values.numel() else 0.0
        tolerance = operator.allowed(kind, inputs)
        yield _Expected(values, values.abs() * tolerance.rtol + tolerance.atol + slack)


def _part(output: Tensor, index: Any, expected: Tensor) -> Tensor:
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
    """Move every element of a float64 tensor by one float32 rounding, up and down in turn."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    signs = torch.ones(value.numel(), dtype=value.dtype, device=value.device)
    signs[::2] = -1
    return value * (1 + _ROUNDING * signs.view(value.shape))
