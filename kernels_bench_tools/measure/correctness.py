"""Is the result right? Asked before any timing, against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import Inputs, Operator, Tolerance, Workload

SENSITIVITY = 8.0
"""Errors up to this multiple of what one float32 rounding of the inputs changes are excused."""
_ROUNDING = 2.0**-23


@dataclass
class Errors:
    """How far an output is from the reference."""

    absmax: float = 0.0
    mae: float = 0.0
    """Mean absolute error."""
    ratio: float = 0.0
    """Largest error as a multiple of what was allowed at that element; at most 1 passes."""


@dataclass
class Verdict:
    """Whether an implementation is right on a workload, and how that was found."""

    ok: bool
    reason: str = ""
    absmax: float | None = None
    corr: dict[str, Any] = field(default_factory=dict)
    """For the record: reference, tolerance, errors, cases."""


class WrongResultError(Exception):
    """The output cannot be compared, or is wrong; the message says why."""


def check(operator: Operator, workload: Workload, function: Callable[..., Any], inputs: Inputs) -> Verdict:
    """Compare ``function`` with the reference on the workload's inputs, then on the operator's hard cases.

    A hard case that the implementation refuses with an exception is noted, not held against it.
    Exceptions on the workload's own inputs are the caller's.
    """
    tolerance = operator.tolerance(inputs[0].dtype)
    corr: dict[str, Any] = {
        "ref": "float64",
        "rtol": tolerance.rtol,
        "atol": tolerance.atol,
        "cases": ["workload"],
    }
    verdict = Verdict(ok=False, corr=corr)
    try:
        errors = _errors(_call(function, inputs), operator, inputs, tolerance)
        verdict.absmax = errors.absmax
        corr.update(absmax=errors.absmax, mae=errors.mae, error_over_allowed=errors.ratio)
        _require_small(errors)
        for name, case in operator.cases(workload, inputs):
            _check_case(operator, function, name, case, corr)
    except WrongResultError as wrong:
        verdict.reason = corr["reason"] = str(wrong)
        return verdict
    verdict.ok = True
    return verdict


def _check_case(
    operator: Operator, function: Callable[..., Any], name: str, inputs: Inputs, corr: dict[str, Any]
) -> None:
    try:
        output = _call(function, inputs)
    except (WrongResultError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        corr.setdefault("refused", {})[name] = f"{type(error).__name__}: {first_line}"[:200]
        return
    try:
        _require_small(_errors(output, operator, inputs, operator.tolerance(inputs[0].dtype)))
    except WrongResultError as wrong:
        raise WrongResultError(f"on {name}: {wrong}") from None
    corr["cases"].append(name)


def _require_small(errors: Errors) -> None:
    if not errors.ratio <= 1.0:
        raise WrongResultError(
            f"off by up to {errors.absmax:.3g}, at one element {errors.ratio:.3g} times what is allowed"
        )


def _call(function: Callable[..., Any], inputs: Inputs) -> Any:
    """Return the result on copies of ``inputs``, which must come back unchanged."""
    copies = tuple(value.clone() if isinstance(value, Tensor) else value for value in inputs)
    output = function(*copies)
    for number, (copy, original) in enumerate(zip(copies, inputs, strict=True), start=1):
        if isinstance(original, Tensor) and not torch.equal(copy, original):
            raise WrongResultError(f"it changed its input number {number}")
    return output


def _errors(output: Any, operator: Operator, inputs: Inputs, tolerance: Tolerance) -> Errors:
    _require_kind(output, inputs[0])
    errors, elements = Errors(), 0
    for index, piece in operator.pieces(inputs):
        expected, slack = _truth(operator, piece)
        actual = _part(output, index, expected)
        elements += expected.numel()
        _add(errors, actual, expected, expected.abs() * tolerance.rtol + tolerance.atol + slack)
    if elements != output.numel():
        raise WrongResultError(f"it returned {output.numel()} elements, expected {elements}")
    errors.mae /= max(elements, 1)
    return errors


def _truth(operator: Operator, piece: Inputs) -> tuple[Tensor, float]:
    """Return the reference in float64, and the error that these inputs excuse at every element.

    Some inputs magnify rounding (a row whose mean is far from 0, say), for any implementation that
    computes in float32. How much is measured: by moving the inputs by one rounding.
    """
    exact = tuple(_in_float64(value) for value in piece)
    expected = operator.reference(*exact)
    if not expected.numel():
        return expected, 0.0
    moved = operator.reference(*(_rounded_once(value) for value in exact))
    return expected, SENSITIVITY * (moved - expected).abs().max().item()


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
    same = (actual == expected) | (actual.isnan() & expected.isnan())  # infinities and NaN in their places
    difference = torch.where(same, 0.0, (actual - expected).abs())
    if not difference.isfinite().all():
        raise WrongResultError("it has NaN or infinity where the reference has none, or the reverse")
    errors.absmax = max(errors.absmax, difference.max().item())
    errors.mae += difference.sum().item()
    errors.ratio = max(errors.ratio, (difference / allowed).max().item())


def _require_kind(output: Any, like: Tensor) -> None:
    if type(output) is not Tensor:
        raise WrongResultError(f"it returned {type(output).__name__}, expected a tensor")
    for name in ("dtype", "device"):
        if getattr(output, name) != getattr(like, name):
            raise WrongResultError(f"its {name} is {getattr(output, name)}, expected {getattr(like, name)}")


def _in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _rounded_once(value: Any) -> Any:
    """Move every element of a float64 tensor by one float32 rounding, up and down in turn."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    signs = torch.ones(value.numel(), dtype=value.dtype, device=value.device)
    signs[::2] = -1
    return value * (1 + _ROUNDING * signs.view(value.shape))
