"""Compare outputs with the formula in float64, and with torch's operator in the same dtype.

Integers and booleans must be equal. The error that is allowed at an element of other types is the operator's
tolerance, plus the change of that element when the inputs are rounded, mostly to float32. Errors are relative to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.errors import KbtError, OperatorError
from kernels_bench_tools.measure.correctness.errors import (
    UNEQUAL,
    ErrorStats,
    Expected,
    WrongResultError,
    distance,
    measure_errors,
    numbers,
)
from kernels_bench_tools.measure.operator import Accept, Inputs, Operator, eps_of, tensors_of
from kernels_bench_tools.text.words import plural

SENSITIVITY = 8.0
"""Allowed error of an element as a multiple of its change, or that of half of its slice, when the inputs are rounded to float32."""
_ROUNDING, _REFERENCE = 2.0**-23, 2.0**-52
"""Of float32, and of float64, in which references are computed: nothing is more precise."""
_TINY = 2.0**-126
_ROUNDINGS = 4
"""How often they are: the changes of a sum cancel now and then, those of all four do not."""
REPEATABLE = 1e-9
"""By this share two results of a reference in float64 may differ: sums on a GPU have no fixed order."""
MATCHED = 0.999
"""At least this share of the elements must be within their tolerance, or all but one of them."""
BASELINE_FACTOR = 2.0
"""The largest error may exceed the tolerance by this multiple of the baseline's, or of the formula's in the inputs' precision."""
SINGLE = 256 * _ROUNDING
"""So large a share of its value may the error of a single element be, whatever the baseline's is: sums in float32 of 8192
exponentials one after another, as Inductor makes them on a CPU, are off by 180 roundings, torch's own by fewer than ten."""
HARD_CAP = 16.0
"""No error may exceed this multiple of the tolerance, whatever the baseline's error is, which may be that of a mistake. Only the
formula itself in float32 may be further off: torch's norm of 4 million elements on a CPU is by 20 times the tolerance."""
ROUNDING_LIKE = 0.1
"""Errors up to this share of the largest value count as lost digits, larger ones as wrong values. Rounded inputs allow no
larger share of an element, or of the root mean square of its slice."""
APPROXIMATE = 8.0
"""Allowed error of a declared lower precision, as a multiple of the mean error that rounding to it causes:
errors of millions of sums of many rounded products reach 5.5 times their mean."""
_FLOOR = 0.125
"""Mean errors below this many eps never count as imprecise: half of the mean error of perfect rounding."""

_NO_TOLERANCE = 1e30
"""Ratios of integers, which must be equal, are larger: the factor says nothing."""
_CHUNK = 2**24
"""Elements that are rounded at once."""


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
    zeros: ErrorStats = field(default_factory=ErrorStats)
    """Of zeros in its place, if they are compared."""
    rounding: ErrorStats = field(default_factory=ErrorStats)
    """Of the formula in the precision of the inputs, where this is needed: the ratio and the elements beyond the tolerance, both
    of ``BASELINE_FACTOR`` times its errors. They are those of rounding, which a baseline's need not be."""

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
        # The mean of few errors is random: of one that is rounded perfectly, up to half of eps.
        floor = max(_FLOOR, max(self.found.elements, 1) ** -0.5) * self.eps * self.baseline.magnitude
        lost = self.found.mae > BASELINE_FACTOR * self.baseline.mae + floor
        return lost and self.found.absmax <= ROUNDING_LIKE * self.found.largest

    def require_correct(self, *, mean: bool = True) -> None:
        """Raise ``WrongResultError`` if an element is too far off, too many are beyond their tolerance, or the ``mean`` error."""
        found = self.found
        which = f"its output {self.name!r} is " if self.name else ""
        of = f" of its output {self.name!r}" if self.name else ""
        like_baseline = 1.0 + (BASELINE_FACTOR * self.baseline.ratio if self.baseline else 0.0)
        most = max(min(max(like_baseline, self.single), HARD_CAP), 1.0 + self.rounding.ratio)
        matched = found.matched + self.rounding.beyond / max(found.elements, 1)
        too_many = found.beyond > 1 and matched < MATCHED
        if found.ratio == UNEQUAL:
            raise WrongResultError(
                f"{which or 'it is '}wrong at {plural(found.beyond, 'place')}, says the operator's `accept`"
            )
        if too_many or not found.ratio <= most:
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
    takes_zeros: bool = False
    """Whether zeros instead of the outputs would be correct, if that was asked."""

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
    output: Any,
    operator: Operator,
    inputs: Inputs,
    only: Collection[int] | None = None,
    *,
    zeros: bool = False,
) -> OutputComparison:
    """Return the errors of ``output`` and the baseline; raise ``WrongResultError`` for another kind, shape, or NaN.

    ``only`` has the numbers of the slices that are compared; all unless given. With ``zeros``, it is found out whether zeros of
    these shapes would be correct, too.
    """
    actual = require_outputs(output, operator, inputs)
    theirs = None
    if operator.baseline is not None:
        with suppress(OperatorError, NotImplementedError):  # torch has none for this dtype and device
            theirs = _own_results(operator.call("baseline", operator.baseline, *inputs))
    compared = []
    for kind, tensor in zip(operator.outputs, actual, strict=True):
        tolerance, eps = operator.tolerance_of(kind, inputs), eps_of(tensor.dtype)
        computed = tolerance.rtol > eps  # else values are moved
        compared.append(
            OutputErrors(
                found=ErrorStats(),
                baseline=None if theirs is None or kind.accept or eps <= _REFERENCE else ErrorStats(),
                eps=eps,
                most=tolerance.mean,
                single=SINGLE / tolerance.rtol if computed else 1.0,
                name=kind.name if len(operator.outputs) > 1 else "",
            )
        )
    for part in _parts(operator, inputs, only):
        if only is None and part.number == 0:
            part.require_repeatable()
        for number, (errors, values) in enumerate(zip(compared, part.of_all(actual), strict=True)):
            if operator.outputs[number].accept:
                errors.found.add_accepted(part.accepted(number, actual), values.numel())
                if zeros:
                    blank = [torch.zeros_like(one) for one in actual]
                    errors.zeros.add_accepted(part.accepted(number, blank), values.numel())
                continue
            other = None
            if theirs is not None and errors.baseline is not None:
                with suppress(WrongResultError):
                    other = part.of(number, theirs[number])
            found = part.errors(number, values, other, zeros=zeros)
            errors.found.add(found.own)
            errors.rounding.add(found.rounding)
            errors.zeros.add(found.zeros)
            if other is not None and errors.baseline is not None:
                if found.baseline is None:
                    errors.baseline = None  # the baseline itself cannot be compared here
                else:
                    errors.baseline.add(found.baseline)
        zeros = zeros and _take_zeros(compared)
    for errors, tensor in zip(compared, actual, strict=True):
        if only is None and errors.found.elements != tensor.numel():
            raise WrongResultError(f"it returned {tensor.numel()} elements, expected {errors.found.elements}")
    return OutputComparison(tuple(compared), takes_zeros=zeros)


def _take_zeros(outputs: Sequence[OutputErrors]) -> bool:
    """Return whether outputs are correct that are 0 everywhere, by their errors so far; of nothing, they are not."""
    with suppress(WrongResultError):
        OutputComparison(tuple(replace(one, found=one.zeros) for one in outputs)).require_correct()
        return any(one.zeros.elements for one in outputs)
    return False


def is_valid(operator: Operator, inputs: Inputs, *, finite: bool = True) -> bool:
    """Return whether torch's own operator is right for these inputs, and the results are ``finite``."""
    with suppress(OperatorError, WrongResultError):
        if operator.baseline is not None:
            with suppress(NotImplementedError):  # torch has none for this dtype and device
                _compare_own(operator, inputs)
        parts = _parts(operator, inputs, None)
        return not finite or all(
            bool(numbers(one).isfinite().all()) for part in parts for one in part.expected
        )
    return False


def _compare_own(operator: Operator, inputs: Inputs) -> None:
    """Raise unless torch's own operator is right."""
    assert operator.baseline is not None
    output = _own_results(operator.call("baseline", operator.baseline, *inputs))
    compare(output if len(output) > 1 else output[0], operator, inputs).require_correct(mean=False)


def require_correct(output: Any, operator: Operator, inputs: Inputs, only: Collection[int]) -> None:
    """Raise ``WrongResultError`` unless these slices of an output are correct.

    The baseline is computed only if it decides: of errors above the tolerance, or of the mean error.
    """
    if not any(operator.tolerance_of(kind, inputs).mean < float("inf") for kind in operator.outputs):
        with suppress(WrongResultError):
            if compare(output, replace(operator, baseline=None), inputs, only).worst.found.ratio <= 1:
                return
    compare(output, operator, inputs, only).require_correct()


def sensitivity(operator: Operator, inputs: Inputs) -> float:
    """Return how much rounded inputs change a result, relative to its largest value; raise unless torch's own is right."""
    _compare_own(operator, inputs)
    shares = [_ROUNDING]
    for part in _parts(operator, inputs, None):
        for expected, change in zip(part.expected, part._changes, strict=True):
            if not bool(numbers(expected).isfinite().all()):
                raise WrongResultError("its result has NaN or infinity")
            if eps_of(expected.dtype) and expected.numel():
                size = numbers(expected).abs().nan_to_num(0.0, 0.0, 0.0).max()
                shares.append(float(change.max() / size.clamp(min=torch.finfo(torch.float32).tiny)))
    return max(shares)


def some_slices(operator: Operator, inputs: Inputs, *, least: int, share: float = 0.0) -> set[int]:
    """Return the numbers of random slices, the last one among them: a share of all, and at least this many."""
    count = sum(1 for _ in operator.slices(inputs))
    wanted = min(count, max(least, ceil(share * count)))
    return {count - 1, *secrets.SystemRandom().sample(range(count - 1), wanted - 1)}


def _parts(operator: Operator, inputs: Inputs, only: Collection[int] | None) -> Iterator[_Part]:
    for number, (index, given) in enumerate(operator.each("slices", operator.slices, inputs)):
        if only is None or number in only:
            yield _Part(operator, inputs, number, index, given)


class _PartErrors(NamedTuple):
    own: ErrorStats
    baseline: ErrorStats | None
    """None if there is none, or it cannot be compared."""
    rounding: ErrorStats
    zeros: ErrorStats


@dataclass
class _Part:
    """A slice of the inputs, and what the reference makes of it, in float64."""

    operator: Operator
    inputs: Inputs
    """All of them."""
    number: int
    index: Any
    coarse: Inputs
    """Those of the slice, in their own precision."""

    @cached_property
    def given(self) -> Inputs:
        return tuple(map(precise, self.coarse))

    @cached_property
    def expected(self) -> tuple[Tensor, ...]:
        return self._results("reference", self.operator.reference, self.given)

    def _results(self, name: str, function: Callable[..., Any], given: Inputs) -> tuple[Tensor, ...]:
        found = _own_results(self.operator.call(name, function, *given))
        if not all(isinstance(one, Tensor) for one in found):
            names = ", ".join(type(one).__name__ for one in found)
            raise self._mistake(f"its reference returned {names}", "Tensors")
        if len(found) != len(self.operator.outputs):
            raise self._mistake(
                f"its reference returned {plural(len(found), 'output')}",
                f"{len(self.operator.outputs)}, as its `outputs` says",
            )
        return tuple(
            _in_range(one, self.operator.dtype_of(kind, self.inputs))
            for kind, one in zip(self.operator.outputs, found, strict=True)
        )

    def _mistake(self, what: str, expected: str = "", remedy: str = "") -> OperatorError:
        return OperatorError(f"operator {self.operator.name}", what, expected, remedy)

    def of(self, number: int, output: Tensor) -> Tensor:
        """Return this slice of an output; ``WrongResultError`` for another shape than the reference's."""
        expected = self.expected[number].shape
        where = self.index[number] if isinstance(self.index, list) else self.index
        shape = f"it returned shape {tuple(output.shape)}"
        try:
            part = output[where]
        except IndexError as error:
            wanted = f"expected shape {tuple(expected)} there"
            raise WrongResultError(f"{shape}, which has no [{where}], {wanted}") from error
        if part.shape != expected:
            inside = "" if part.shape == output.shape else f", whose [{where}] has shape {tuple(part.shape)}"
            raise WrongResultError(f"{shape}{inside}, expected {tuple(expected)}")
        return part

    def of_all(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(self.of(number, output) for number, output in enumerate(outputs))

    def require_repeatable(self) -> None:
        """Raise ``OperatorError`` if the reference is random, or its results are not accepted by the operator's predicate."""
        again = self._results("reference", self.operator.reference, self.given)
        for kind, *both in zip(self.operator.outputs, self.expected, again, strict=True):
            if kind.accept:
                if not bool(_accepted(kind.accept, self.given, self.expected, self.expected).all()):
                    raise self._mistake(f"its `accept` of {kind.name!r} refuses what its reference returned")
            elif not alike(*both):
                raise self._mistake(
                    f"its reference returned other values for {kind.name!r} when it was called again",
                    "The same, or nothing can be compared with it",
                    "Let `inputs` return a seed, from which reference and implementations draw the same numbers; or give "
                    "the output a predicate, `accept`, that looks at their mean, share of zeros and the like",
                )

    def accepted(self, number: int, outputs: Sequence[Tensor]) -> Tensor:
        """Return where the operator's predicate accepts an output; ``WrongResultError`` if it raises."""
        accept = self.operator.outputs[number].accept
        assert accept is not None
        try:
            return _accepted(accept, self.given, self.of_all(outputs), self.expected)
        except (RuntimeError, IndexError, ValueError) as error:
            raise WrongResultError(
                f"the operator's `accept` raised {type(error).__name__}: {error}"
            ) from error

    def errors(
        self, number: int, output: Tensor, baseline: Tensor | None, *, zeros: bool = False
    ) -> _PartErrors:
        """Return the errors of this slice of an output, of the baseline and, if asked for, of zeros.

        What rounded inputs change is allowed, too; it is computed if the output or the baseline needs it.
        """
        operator, expected = self.operator, Expected(self.expected[number])
        tolerance = operator.tolerance_of(operator.outputs[number], self.inputs)
        least = tolerance.atol
        if tolerance.small:  # small results are no zeros
            least *= min(max(expected.usual / tolerance.small, _TINY), 1.0)
        more = None
        if operator.rounded is not None:
            coarse = self._results("precisions", operator.rounded, self.given)[number]
            more = _error_of_rounding(numbers(expected.values), numbers(coarse))

        def measure(value: Tensor | None, times: float = 1.0) -> ErrorStats | None:
            if value is None:
                return None
            extra = more if more is None or times == 1 else more / times
            with suppress(WrongResultError):
                return measure_errors(value, expected, tolerance.rtol / times, least / times, extra)
            return None

        found, theirs = measure_errors(output, expected, tolerance.rtol, least, more), measure(baseline)
        within = found.ratio <= 1 and (baseline is None or (theirs is not None and theirs.ratio <= 1))
        rounding = None
        if not within and tolerance.rtol and expected.values.numel():
            change = self._changes[number]
            # An element in which roundings of inputs cancel has those of other steps.
            change = SENSITIVITY * change.clamp(min=change.median())
            change = change.minimum(ROUNDING_LIKE * expected.sizes().clamp(min=expected.usual))
            more = change if more is None else change + more
            found, theirs = measure_errors(output, expected, tolerance.rtol, least, more), measure(baseline)
            if found.ratio > 1 and (self._is_single or baseline is None):
                rounding = measure(self._formula(number), BASELINE_FACTOR)
        rounding = rounding or ErrorStats()
        if not self._is_single:  # a formula in half precision rounds each step, which no kernel needs to do
            rounding = ErrorStats(ratio=min(rounding.ratio, HARD_CAP - 1))
        blank = measure(torch.zeros_like(output)) if zeros else None
        return _PartErrors(found, theirs, rounding, blank or ErrorStats(ratio=UNEQUAL, beyond=1))

    @property
    def _is_single(self) -> bool:
        """Whether no input is less precise than float32."""
        return (
            max((eps_of(one.dtype) for one in self.inputs if isinstance(one, Tensor)), default=0.0)
            <= _ROUNDING
        )

    def _formula(self, number: int) -> Tensor | None:
        """Return an output that the reference computes in the precision of the inputs; None if it cannot."""
        with suppress(KbtError, NotImplementedError):
            return self._results("reference", self.operator.reference, self.coarse)[number]
        return None

    @property
    def _rounding(self) -> float:
        """That of float32, of float64 if there are inputs and outputs of this type, or that of products as a share of ``SENSITIVITY``."""
        outputs = [self.operator.dtype_of(kind, self.inputs) for kind in self.operator.outputs]
        inputs = [one.dtype for one in self.inputs if isinstance(one, Tensor)]
        finest = (min(filter(None, map(eps_of, dtypes)), default=1.0) for dtypes in (outputs, inputs))
        products = self.operator.tolerance_of(self.operator.outputs[0], self.inputs).products
        return max(min(_ROUNDING, max(finest)), products / SENSITIVITY)

    @cached_property
    def _changes(self) -> list[Tensor]:
        """How much each element of each output changes when the inputs are rounded, at most.

        Inputs such as a row whose mean is far from 0 magnify rounding errors. By how much is measured: the reference is
        computed again with rounded inputs.
        """
        found = [torch.zeros_like(value, dtype=torch.float64) for value in self.expected]
        for seed in range(_ROUNDINGS):
            moved = (_rounded(value, 100 * seed + n, self._rounding) for n, value in enumerate(self.given))
            results = self._results("reference", self.operator.reference, tuple(moved))
            for number, (value, result) in enumerate(zip(self.expected, results, strict=True)):
                if value.shape == result.shape:  # else it depends on values
                    change = distance(result, value).nan_to_num(0.0, 0.0, 0.0)
                    found[number] = found[number].maximum(change)
        return found


def _own_results(found: Any) -> tuple[Any, ...]:
    """Return the results of a function of the operator, which may be a named tuple, as of ``torch.topk``."""
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def _accepted(accept: Accept, inputs: Inputs, *results: tuple[Tensor, ...]) -> Tensor:
    return torch.as_tensor(accept(inputs, *results), dtype=torch.bool)


def precise(value: Any) -> Any:
    """Return floating-point and complex tensors in twice the precision of float32 at least."""
    if not isinstance(value, Tensor):
        return value
    return value.double() if value.is_floating_point() else numbers(value) if value.is_complex() else value


def _in_range(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return infinities in place of what the type cannot hold, if it has them."""
    if dtype not in (torch.float32, torch.float16, torch.bfloat16) or not values.is_floating_point():
        return values
    most = torch.finfo(dtype).max
    if not values.numel() or float(torch.linalg.vector_norm(values, torch.inf)) <= most:  # reads them once
        return values
    return torch.where(values.abs() > most, values.sign() * torch.inf, values)


def alike(left: Tensor, right: Tensor) -> bool:
    """Return whether two results of a reference differ by no more than the order of its sums."""
    if left.shape != right.shape:
        return False
    if torch.equal(left, right):
        return True
    size = numbers(left).abs().nan_to_num(0.0, 0.0, 0.0)
    return not left.numel() or bool((distance(left, right) <= REPEATABLE * size.max()).all())


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
        owner, dtype = f"{name}: its" if name else "its", operator.dtype_of(kind, inputs)
        if value.dtype != dtype:
            said = f"{owner} dtype is {value.dtype}, expected {dtype}"
            raise WrongResultError(f"{said}, as `outputs` of the operator says")
        if value.device != inputs[0].device:
            raise WrongResultError(f"{owner} device is {value.device}, expected {inputs[0].device}")
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


def _error_of_rounding(values: Tensor, rounded: Tensor) -> Tensor:
    """Return the error that a lower precision allows in each row: relative to its values, that of the worst row."""
    if not values.numel():
        return values
    size, moved = (row.square().mean(-1, keepdim=True).sqrt() for row in (values, rounded - values))
    share = torch.where(
        size > _ROUNDING * size.max(), moved / size, 0.0
    )  # rows of zeros differ by float64's rounding
    return APPROXIMATE * size * share.max()


def _rounded(value: Any, seed: int, rounding: float) -> Any:
    """Move every element of a tensor in float64 by this share of it, up or down."""
    if not isinstance(value, Tensor) or not eps_of(value.dtype):
        return value
    generator = torch.Generator(value.device).manual_seed(seed)
    moved = value.clone(memory_format=torch.contiguous_format)
    for part in moved.view(-1).split(_CHUNK):  # of all weights it would take several times their memory
        up = torch.randint(2, part.shape, generator=generator, device=value.device)
        part.mul_(1 + rounding * (2.0 * up.double() - 1))
    return moved
