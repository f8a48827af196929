"""How far outputs are from the reference, and whether that passes.

An error is measured in units of what the output's type excuses at its element, called *allowed*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MATCHED = 0.999
"""At least this part of the elements must be within what is allowed."""
BASELINE_FACTOR = 2.0
"""Beyond what is allowed, an error may be this multiple of the baseline's largest."""
HARD_CAP = 16.0
"""No error may exceed what is allowed this many times, however wrong the baseline is."""
ROUNDING_LIKE = 0.1
"""Errors up to this part of the largest value look like lost digits, larger ones like wrong values."""
_FLOOR = 0.125
"""Mean error, in units of the type's eps, that is never called imprecise: half of perfect rounding's."""


class WrongResultError(Exception):
    """The output cannot be compared, or is wrong; the message says why."""


@dataclass
class Errors:
    """How far one output is from the reference."""

    absmax: float = 0.0
    total: float = 0.0
    """Sum of the absolute errors."""
    ratio: float = 0.0
    """Largest error as a multiple of what was allowed at that element."""
    beyond: int = 0
    """Elements that are further off than allowed."""
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
        """Part of the elements that are within what is allowed."""
        return 1 - self.beyond / max(self.elements, 1)

    @property
    def plausible(self) -> bool:
        """Whether the output follows from the inputs, lost digits aside."""
        return self.ratio <= HARD_CAP or self.absmax <= ROUNDING_LIKE * self.largest

    def add(self, actual: Tensor, expected: Tensor, allowed: Tensor) -> None:
        """Add some elements of the output.

        Args:
            actual: What an implementation returned, in float64.
            expected: The reference, in float64, of the same shape.
            allowed: The error that is excused at each element.

        Raises:
            WrongResultError: NaN or infinity are not where they belong.
        """
        if not expected.numel():
            return
        # Infinities in their places; NaN matches nothing, or poisoning the reference would excuse any output.
        difference = torch.where(actual == expected, 0.0, (actual - expected).abs())
        absmax = difference.max().item()
        if not absmax < float("inf"):
            raise WrongResultError("it has NaN or infinity where the reference has none, or the reverse")
        size = expected.abs()
        self.absmax = max(self.absmax, absmax)
        self.total += difference.sum().item()
        self.ratio = max(self.ratio, (difference / allowed).max().item())
        self.beyond += int((difference > allowed).sum().item())
        self.elements += expected.numel()
        self.largest = max(self.largest, size.max().item())
        self.size += size.sum().item()


@dataclass
class OutputErrors:
    """The errors of one output, and those of torch's operator on the same inputs."""

    found: Errors
    baseline: Errors | None
    eps: float
    """Of the output's type."""
    name: str = ""
    """What messages call it; empty for an only output."""

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
        return lost and self.found.absmax <= ROUNDING_LIKE * self.found.largest

    def require_right(self) -> None:
        """Raise unless the errors pass.

        Raises:
            WrongResultError: An element is too far off, or too many are off.
        """
        found = self.found
        which = f"its output {self.name!r} is " if self.name else ""
        of = f" of its output {self.name!r}" if self.name else ""
        limit = 1.0 + (BASELINE_FACTOR * self.baseline.ratio if self.baseline else 0.0)
        if not found.ratio <= min(limit, HARD_CAP):
            raise WrongResultError(
                f"{which}off by up to {found.absmax:.3g}, at one element {found.ratio:.3g} times what is allowed"
            )
        if found.matched < MATCHED:
            raise WrongResultError(
                f"{found.beyond} of {found.elements} elements{of} are off by more than is allowed, "
                f"the worst {found.ratio:.3g} times"
            )


@dataclass(frozen=True)
class Comparison:
    """An implementation's outputs beside the reference."""

    outputs: tuple[OutputErrors, ...]

    @property
    def worst(self) -> OutputErrors:
        """The output that is nearest to being called wrong."""
        return max(self.outputs, key=lambda output: output.found.ratio)

    @property
    def imprecise(self) -> bool:
        """Whether digits were lost that torch's operator keeps."""
        return any(output.imprecise for output in self.outputs)

    @property
    def precision(self) -> float | None:
        """The largest mean error as a multiple of the baseline's; None without a baseline."""
        return max(
            (output.precision for output in self.outputs if output.precision is not None), default=None
        )

    def require_right(self) -> None:
        """Raise unless every output passes.

        Raises:
            WrongResultError: One does not.
        """
        for output in self.outputs:
            output.require_right()
