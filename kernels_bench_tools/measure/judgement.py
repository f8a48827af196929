"""One output against the formula in float64, and against torch's own operator in the same type.

An error is measured in units of what the output's type excuses at its element: *allowed* is the operator's
tolerance plus what a float32 rounding of the inputs would change in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.operator import Inputs, Operator, Tolerance

SENSITIVITY = 8.0
"""Errors up to this multiple of what one float32 rounding of the inputs changes are excused."""
MATCHED = 0.999
"""At least this part of the elements must be within what is allowed."""
BASELINE_FACTOR = 2.0
"""Beyond what is allowed, an error may be this multiple of the baseline's largest."""
HARD_CAP = 16.0
"""No error may exceed what is allowed this many times, however wrong the baseline is."""
_ROUNDING = 2.0**-23
_FLOOR = 0.125
"""Mean error, in units of the type's eps, that is never called imprecise: half of perfect rounding's."""
_ROUNDING_LIKE = 0.1
"""Errors up to this part of the largest value look like lost digits, larger ones like wrong values."""


class WrongResultError(Exception):
    """The output cannot be compared, or is wrong; the message says why."""


@dataclass
class Errors:
    """How far an output is from the reference."""

    absmax: float = 0.0
    mae: float = 0.0
    """Mean absolute error."""
    ratio: float = 0.0
    """Largest error as a multiple of what was allowed at that element."""
    beyond: int = 0
    """Elements that are further off than allowed."""
    elements: int = 0
    largest: float = 0.0
    """Largest absolute value of the reference."""
    magnitude: float = 0.0
    """Mean absolute value of the reference."""

    @property
    def matched(self) -> float:
        """Part of the elements that are within what is allowed."""
        return 1 - self.beyond / max(self.elements, 1)


@dataclass(frozen=True)
class Comparison:
    """The errors of an implementation, and those of torch's operator on the same inputs."""

    found: Errors
    baseline: Errors | None
    eps: float
    """Of the output's type."""

    @property
    def precision(self) -> float | None:
        """Mean error as a multiple of the baseline's; None without a baseline."""
        if self.baseline is None:
            return None
        return self.found.mae / (self.baseline.mae or self.eps * self.baseline.magnitude or 1.0)

    @property
    def imprecise(self) -> bool:
        """Whether digits were lost that torch's operator keeps."""
        if self.baseline is None:
            return False
        floor = _FLOOR * self.eps * self.baseline.magnitude
        lost = self.found.mae > BASELINE_FACTOR * self.baseline.mae + floor
        return lost and self.found.absmax <= _ROUNDING_LIKE * self.found.largest

    def require_right(self) -> None:
        """Raise unless the errors pass.

        Raises:
            WrongResultError: An element is too far off, or too many are off.
        """
        found = self.found
        limit = 1.0 + (BASELINE_FACTOR * self.baseline.ratio if self.baseline else 0.0)
        if not found.ratio <= min(limit, HARD_CAP):
            raise WrongResultError(
                f"off by up to {found.absmax:.3g}, at one element {found.ratio:.3g} times what is allowed"
            )
        if found.matched < MATCHED:
            raise WrongResultError(
                f"{found.beyond} of {found.elements} elements are off by more than is allowed, "
                f"the worst {found.ratio:.3g} times"
            )


def compare(output: Any, operator: Operator, inputs: Inputs, *, baseline: bool = True) -> Comparison:
    """Return the errors of ``output``, and the baseline's if the operator has one that runs.

    Args:
        output: What an implementation returned.
        operator: Whose formula is the truth.
        inputs: What the output should follow from, unchanged by the implementation.
        baseline: Whether to judge torch's operator, too.

    Raises:
        WrongResultError: The output has another type, shape or device, or NaN.
    """
    require_kind(output, inputs[0])
    theirs = _baseline(operator, inputs) if baseline else None
    tolerance = operator.tolerance(inputs[0].dtype)
    found, other = Errors(), Errors() if theirs is not None else None
    for index, piece in operator.pieces(inputs):
        expected, allowed = _add_piece(found, output, operator, index, piece, tolerance)
        if theirs is not None and other is not None:
            other = _add_baseline(other, theirs[index], expected, allowed)
    if found.elements != output.numel():
        raise WrongResultError(f"it returned {output.numel()} elements, expected {found.elements}")
    for errors in filter(None, (found, other)):
        errors.mae /= max(errors.elements, 1)
        errors.magnitude /= max(errors.elements, 1)
    return Comparison(found, other, torch.finfo(inputs[0].dtype).eps)


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
    tolerance = operator.tolerance(inputs[0].dtype)
    try:
        require_kind(output, inputs[0])
        for number, (index, piece) in enumerate(operator.pieces(inputs)):
            if choose is not None and not choose(number):
                continue
            errors = Errors()
            _add_piece(errors, output, operator, index, piece, tolerance)
            lost_digits = errors.absmax <= _ROUNDING_LIKE * errors.largest
            if errors.ratio > HARD_CAP and not lost_digits:
                return False
    except WrongResultError:
        return False
    return True


def require_kind(output: Any, like: Tensor) -> None:
    """Raise unless ``output`` is a plain tensor of the type and on the device of ``like``.

    Raises:
        WrongResultError: It is not.
    """
    if type(output) not in (Tensor, Parameter):
        raise WrongResultError(f"it returned {type(output).__name__}, expected a tensor")
    for name in ("dtype", "device"):
        if getattr(output, name) != getattr(like, name):
            raise WrongResultError(f"its {name} is {getattr(output, name)}, expected {getattr(like, name)}")


def _baseline(operator: Operator, inputs: Inputs) -> Tensor | None:
    """Return torch's result, computed on a copy where the operator works in place."""
    if operator.baseline is None:
        return None
    copies = (value.clone() if number in operator.in_place else value for number, value in enumerate(inputs))
    try:
        return operator.baseline(*copies)
    except (RuntimeError, NotImplementedError):  # torch has no such operator for this type and device
        return None


def _add_piece(
    errors: Errors, output: Tensor, operator: Operator, index: Any, piece: Inputs, tolerance: Tolerance
) -> tuple[Tensor, Tensor]:
    """Add a piece of the output; return its reference, and the error allowed at each element."""
    expected, slack = _truth(operator, piece)
    allowed = expected.abs() * tolerance.rtol + tolerance.atol + slack
    _add(errors, _part(output, index, expected), expected, allowed)
    return expected, allowed


def _add_baseline(errors: Errors, part: Tensor, expected: Tensor, allowed: Tensor) -> Errors | None:
    """Add a piece of the baseline's output; None if the baseline itself cannot be compared here."""
    try:
        _add(errors, part.double(), expected, allowed)
    except WrongResultError:
        return None
    return errors


def _truth(operator: Operator, piece: Inputs) -> tuple[Tensor, float]:
    """Return the reference in float64, and the error that these inputs excuse at every element.

    Some inputs magnify rounding (a row whose mean is far from 0, say), for any implementation that
    computes in float32. How much is measured: by moving the inputs by one rounding.
    """
    exact = tuple(_in_float64(value) for value in piece)
    moved = tuple(_rounded_once(value) for value in exact)
    expected = operator.reference(*exact)
    if not expected.numel():
        return expected, 0.0
    return expected, SENSITIVITY * (operator.reference(*moved) - expected).abs().max().item()


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


def _add(errors: Errors, actual: Tensor, expected: Tensor, allowed: Tensor) -> None:
    if not expected.numel():
        return
    # Infinities in their places; NaN matches nothing, or poisoning the reference would excuse any output.
    difference = torch.where(actual == expected, 0.0, (actual - expected).abs())
    absmax = difference.max().item()
    if not absmax < float("inf"):
        raise WrongResultError("it has NaN or infinity where the reference has none, or the reverse")
    size = expected.abs()
    errors.absmax = max(errors.absmax, absmax)
    errors.mae += difference.sum().item()
    errors.ratio = max(errors.ratio, (difference / allowed).max().item())
    errors.beyond += int((difference > allowed).sum().item())
    errors.elements += expected.numel()
    errors.largest = max(errors.largest, size.max().item())
    errors.magnitude += size.sum().item()


def _in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _rounded_once(value: Any) -> Any:
    """Move every element of a float64 tensor by one float32 rounding, up and down in turn."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    signs = torch.ones(value.numel(), dtype=value.dtype, device=value.device)
    signs[::2] = -1
    return value * (1 + _ROUNDING * signs.view(value.shape))
