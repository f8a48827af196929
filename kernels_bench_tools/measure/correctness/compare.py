"""Compare outputs with the formula in float64, and with torch's operator in the same dtype.

The error that is allowed at an element is the operator's tolerance, plus the change of the result when the inputs
are rounded to float32. Errors are relative to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.operator import Inputs, Operator, eps_of, tensors_of
from kernels_bench_tools.text import plural

SENSITIVITY = 8.0
"""Allowed error as a multiple of the change that one float32 rounding of the inputs causes."""
_ROUNDING = 2.0**-23
MATCHED = 0.999
"""At least this share of the elements must be within their tolerance, or all but one of them."""
BASELINE_FACTOR = 2.0
"""The largest error may exceed the tolerance by this multiple of the baseline's."""
SINGLE = 256 * _ROUNDING
"""So large a share of its value may the error of a single element be, whatever the baseline's is: sums in float32 of 8192
exponentials one after another, as Inductor makes them on a CPU, are off by 180 roundings, torch's own by fewer than ten."""
HARD_CAP = 16.0
"""No error may exceed this multiple of the tolerance, whatever the baseline's error is."""
ROUNDING_LIKE = 0.1
"""Errors up to this share of the largest value count as lost digits, larger ones as wrong values."""
APPROXIMATE = 8.0
"""Allowed error of a declared lower precision, as a multiple of the mean error that rounding to it causes:
errors of millions of sums of many rounded products reach 5.5 times their mean."""
_FLOOR = 0.125
"""Mean errors below this many eps never count as imprecise: half of the mean error of perfect rounding."""

_NO_TOLERANCE = 1e30
"""Ratios of integers, which must be equal, are larger: the factor says nothing."""


class WrongResultError(Exception):
    """The output is wrong or cannot be compared; the message gives the reason."""


@dataclass
class ErrorStats:
    absmax: float = 0.0
    total: float = 0.0
    """Sum of the absolute errors."""
    ratio: float = 0.0
    """Largest error as a multiple of the tolerance at its element."""
    beyond: int = 0
    elements: int = 0
    largest: float = 0.0
    """Largest absolute value of the reference."""
    size: float = 0.0
    """Sum of the absolute values of the reference."""

    @property
    def mae(self) -> float:
        """Mean absolute error."""
        return self.total / max(self.elements, 1)

    @property
    def magnitude(self) -> float:
        """Mean absolute value of the reference."""
        return self.size / max(self.elements, 1)

    @property
    def matched(self) -> float:
        """Share of the elements within their tolerance."""
        return 1 - self.beyond / max(self.elements, 1)

    def add(self, actual: Tensor, expected: Tensor, allowed: Tensor, *, sums: bool = True) -> None:
        """Add elements of the output; all three tensors are in float64 and of one shape.

        Without ``sums`` only what decides whether it is correct. Raises ``WrongResultError`` for NaN or infinity at
        other places than in the reference.
        """
        if not expected.numel():
            return
        # Equal infinities match. NaN never does, or inputs with NaN would make any output correct.
        difference = torch.where(actual == expected, 0.0, (actual - expected).abs())
        found = [difference.max(), (difference / allowed).max(), (difference > allowed).sum().double()]
        if sums:
            size = expected.abs()
            found += [difference.sum(), size.max(), size.sum()]
        absmax, ratio, beyond, *of_sizes = torch.stack(found).tolist()  # waits for the device once
        if not absmax < float("inf"):
            raise WrongResultError("it has NaN or infinity where the reference has none, or the reverse")
        self.absmax = max(self.absmax, absmax)
        self.ratio = max(self.ratio, ratio)
        self.beyond += int(beyond)
        self.elements += expected.numel()
        if sums:
            total, largest, size_of_all = of_sizes
            self.total += total
            self.largest = max(self.largest, largest)
            self.size += size_of_all


@dataclass
class OutputErrors:
    """Errors of one output, and of torch's operator on the same inputs."""

    found: ErrorStats
    baseline: ErrorStats | None
    eps: float
    """Of the output's dtype."""
    most: float = float("inf")
    """Allowed mean error, as a multiple of the baseline's."""
    single: float = 1.0
    """Allowed error of a single element as a multiple of the tolerance, if the baseline's allows no larger one."""
    name: str = ""
    """Its name in messages; empty for an only output."""

    @property
    def precision(self) -> float | None:
        """Mean error as a multiple of the baseline's; None without a baseline."""
        if self.baseline is None:
            return None
        return self.found.mae / (self.baseline.mae or self.eps * self.baseline.magnitude or 1.0)

    @property
    def imprecise(self) -> bool:
        """Whether it lost digits that torch's operator keeps."""
        if self.baseline is None:
            return False
        floor = _FLOOR * self.eps * self.baseline.magnitude
        lost = self.found.mae > BASELINE_FACTOR * self.baseline.mae + floor
        return lost and self.found.absmax <= ROUNDING_LIKE * self.found.largest

    def require_correct(self, *, mean: bool = True) -> None:
        """Raise ``WrongResultError`` if an element is too far off, too many are beyond their tolerance, or the ``mean`` error."""
        found = self.found
        which = f"its output {self.name!r} is " if self.name else ""
        of = f" of its output {self.name!r}" if self.name else ""
        like_baseline = 1.0 + (BASELINE_FACTOR * self.baseline.ratio if self.baseline else 0.0)
        too_many = found.beyond > 1 and found.matched < MATCHED
        if too_many or not found.ratio <= min(max(like_baseline, self.single), HARD_CAP):
            factor = f"{found.ratio:,.0f}" if 100 <= found.ratio < 1e6 else f"{found.ratio:.3g}"
            worst = f", the worst by a factor of {factor}" if found.ratio < _NO_TOLERANCE else ""
            raise WrongResultError(
                f"{which}off by up to {found.absmax:.3g}; {found.beyond:,} of {found.elements:,} elements beyond the "
                f"tolerance{worst}"
            )
        if mean and self.precision is not None and self.precision > self.most:
            raise WrongResultError(
                f"the mean error{of} is {self.precision:.3g} times that of torch's operator"
            )


@dataclass(frozen=True)
class OutputComparison:
    outputs: tuple[OutputErrors, ...]

    @property
    def worst(self) -> OutputErrors:
        """The output with the largest error relative to its tolerance."""
        return max(self.outputs, key=lambda output: output.found.ratio)

    @property
    def imprecise(self) -> bool:
        return any(output.imprecise for output in self.outputs)

    @property
    def precision(self) -> float | None:
        """Largest mean error as a multiple of the baseline's; None without a baseline."""
        known = [output.precision for output in self.outputs if output.precision is not None]
        return max(known, default=None)

    def require_correct(self, *, mean: bool = True) -> None:
        """Raise ``WrongResultError`` unless every output passes; without ``mean`` the mean error may be any."""
        for output in self.outputs:
            output.require_correct(mean=mean)


def compare(
    output: Any, operator: Operator, inputs: Inputs, only: Collection[int] | None = None
) -> OutputComparison:
    """Return the errors of ``output`` and the baseline; raise ``WrongResultError`` for another kind, shape, or NaN.

    ``only`` has the numbers of the slices that are compared; all unless given.
    """
    actual = require_outputs(output, operator, inputs)
    theirs = None
    if operator.baseline is not None:
        with suppress(
            RuntimeError, NotImplementedError
        ):  # torch has no such operator for this dtype and device
            theirs = tensors_of(operator.baseline(*inputs))
    compared = []
    for kind, tensor in zip(operator.outputs, actual, strict=True):
        tolerance, eps = operator.tolerance_of(kind, inputs), eps_of(tensor.dtype)
        computed = tolerance.rtol > eps  # else values are moved
        compared.append(
            OutputErrors(
                found=ErrorStats(),
                baseline=None if theirs is None else ErrorStats(),
                eps=eps,
                most=tolerance.mean,
                single=SINGLE / tolerance.rtol if computed else 1.0,
                name=kind.name if len(operator.outputs) > 1 else "",
            )
        )
    for number, index, *parts in _parts(actual, operator, inputs, only):
        errors = compared[number]
        errors.found.add(*parts)
        if theirs is not None and errors.baseline is not None:
            try:
                errors.baseline.add(theirs[number][index].double(), *parts[1:])
            except WrongResultError:
                errors.baseline = None  # the baseline itself cannot be compared here
    for errors, tensor in zip(compared, actual, strict=True):
        if only is None and errors.found.elements != tensor.numel():
            raise WrongResultError(f"it returned {tensor.numel()} elements, expected {errors.found.elements}")
    return OutputComparison(tuple(compared))


def require_correct(output: Any, operator: Operator, inputs: Inputs, only: Collection[int]) -> None:
    """Raise ``WrongResultError`` unless these slices of an output are correct.

    The baseline is computed only if it decides: of errors above the tolerance, or of the mean error.
    """
    of_mean = any(operator.tolerance_of(kind, inputs).mean < float("inf") for kind in operator.outputs)
    if of_mean or not is_plausible(output, operator, inputs, only, limit=1.0):
        compare(output, operator, inputs, only).require_correct()


def is_plausible(
    output: Any,
    operator: Operator,
    inputs: Inputs,
    only: Collection[int] | None = None,
    *,
    limit: float = HARD_CAP,
) -> bool:
    """Return whether an output follows from the inputs, apart from lost digits; ``only`` as for :func:`compare`.

    No error may exceed ``limit`` times the tolerance.
    """
    try:
        actual = require_outputs(output, operator, inputs)
        for _, _, *parts in _parts(actual, operator, inputs, only):
            errors = ErrorStats()
            errors.add(*parts, sums=False)
            if not errors.ratio <= limit:
                return False
    except WrongResultError:
        return False
    return True


def some_slices(operator: Operator, inputs: Inputs, *, least: int, share: float = 0.0) -> set[int]:
    """Return the numbers of random slices, the last one among them: a share of all, and at least this many."""
    count = sum(1 for _ in operator.slices(inputs))
    wanted = min(count, max(least, ceil(share * count)))
    return {count - 1, *secrets.SystemRandom().sample(range(count - 1), wanted - 1)}


def _parts(
    actual: Sequence[Tensor], operator: Operator, inputs: Inputs, only: Collection[int] | None
) -> Iterator[tuple[int, Any, Tensor, Tensor, Tensor]]:
    """Yield the number of an output, the index of a slice, and in float64 its values, the expected ones, and allowed errors.

    Raises ``WrongResultError`` for another shape than the reference's.
    """
    for place, (index, inputs_slice) in enumerate(operator.slices(inputs)):
        if only is not None and place not in only:
            continue
        for number, (expected, allowed) in enumerate(_expected(operator, inputs, inputs_slice)):
            output, where = actual[number], index[number] if isinstance(index, list) else index
            shape = f"it returned shape {tuple(output.shape)}"
            try:
                part = output[where]
            except IndexError as error:
                wanted = f"expected shape {tuple(expected.shape)} there"
                raise WrongResultError(f"{shape}, which has no [{where}], {wanted}") from error
            if part.shape != expected.shape:
                inside = (
                    "" if part.shape == output.shape else f", whose [{where}] has shape {tuple(part.shape)}"
                )
                raise WrongResultError(f"{shape}{inside}, expected {tuple(expected.shape)}")
            yield number, where, part.double(), expected, allowed


def require_outputs(output: Any, operator: Operator, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of an output; raise ``WrongResultError`` if their number or kind is wrong."""
    kinds = operator.outputs
    found = tensors_of(output)
    if len(found) != len(kinds):
        raise WrongResultError(
            f"it returned {plural(len(found), 'output')}, expected {len(kinds)}, as `outputs` of the operator says"
        )
    if len(kinds) == 1:
        found = (output,)
    for kind, value in zip(kinds, found, strict=True):
        name = "" if len(kinds) == 1 else f"its output {kind.name!r}"
        if type(value) not in (Tensor, Parameter):
            subject = f"{name} is a" if name else "it returned"
            raise WrongResultError(f"{subject} {type(value).__name__}, expected a tensor")
        owner = f"{name}: its" if name else "its"
        for attribute, expected in (("dtype", kind.dtype_for(inputs)), ("device", inputs[0].device)):
            if getattr(value, attribute) != expected:
                raise WrongResultError(
                    f"{owner} {attribute} is {getattr(value, attribute)}, expected {expected}"
                )
    return found


def require_alike(output: Any, like: Sequence[Tensor]) -> None:
    """Raise ``WrongResultError`` unless the tensors of an output have the shapes and dtypes of these."""
    found, expected = (
        ", ".join(
            f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
            for value in values
            if isinstance(value, Tensor)
        )
        for values in (tensors_of(output), like)
    )
    if found != expected:
        raise WrongResultError(f"it returned {found}, and {expected} before")


def _expected(operator: Operator, inputs: Inputs, inputs_slice: Inputs) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the reference and the allowed errors of a slice, for each output.

    Inputs such as a row whose mean is far from 0 magnify rounding errors in float32. By how much is measured: the
    reference is computed again with rounded inputs. So is what a declared lower precision causes.
    """
    exact = tuple(
        value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in inputs_slice
    )
    expected = tensors_of(operator.reference(*exact))
    if len(expected) != len(operator.outputs):
        raise OperatorError(
            f"operator {operator.name}",
            f"its reference returned {plural(len(expected), 'output')}",
            f"{len(operator.outputs)}, as its `outputs` says",
        )
    moved = tensors_of(operator.reference(*(_rounded_once(value) for value in exact)))
    rounded = tensors_of(operator.rounded(*exact)) if operator.rounded else expected
    for kind, *found in zip(operator.outputs, expected, moved, rounded, strict=True):
        values, other, coarse = (value.double() for value in found)  # integers, too
        slack: float | Tensor = SENSITIVITY * (other - values).abs().max().item() if values.numel() else 0.0
        if operator.rounded is not None:
            slack = slack + _error_of_rounding(values, coarse)
        tolerance = operator.tolerance_of(kind, inputs)
        yield values, values.abs() * tolerance.rtol + tolerance.atol + slack


def _error_of_rounding(values: Tensor, rounded: Tensor) -> Tensor:
    """Return the error that a lower precision allows in each row: relative to its values, that of the worst row."""
    if not values.numel():
        return values
    size, moved = (row.square().mean(-1, keepdim=True).sqrt() for row in (values, rounded - values))
    share = torch.where(
        size > _ROUNDING * size.max(), moved / size, 0.0
    )  # rows of zeros differ by float64's rounding
    return APPROXIMATE * size * share.max()


def _rounded_once(value: Any) -> Any:
    """Move every element of a float64 tensor by one float32 rounding, alternately up and down."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    signs = torch.ones(value.numel(), dtype=value.dtype, device=value.device)
    signs[::2] = -1
    return value * (1 + _ROUNDING * signs.view(value.shape))
