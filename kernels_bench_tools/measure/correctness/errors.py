"""Errors of outputs against the reference, and the limits that they must meet.

An error is measured relative to the tolerance at its element, called *allowed*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MATCHED = 0.999
"""At least this share of the elements must be within their tolerance."""
BASELINE_FACTOR = 2.0
"""The largest error may exceed the tolerance by this multiple of the baseline's."""
HARD_CAP = 16.0
"""No error may exceed this multiple of the tolerance, whatever the baseline's error is."""
ROUNDING_LIKE = 0.1
"""Errors up to this share of the largest value count as lost digits, larger ones as wrong values."""
_FLOOR = 0.125
"""Mean errors below this many eps never count as imprecise: half of the mean error of perfect rounding."""


class WrongResultError(Exception):
    """The output is wrong or cannot be compared; the message gives the reason."""


@dataclass
class ErrorStats:
    """Errors of one output."""

    absmax: float = 0.0
    total: float = 0.0
    """Sum of the absolute errors."""
    ratio: float = 0.0
    """Largest error as a multiple of the tolerance at its element."""
    beyond: int = 0
    """Number of elements beyond their tolerance."""
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

    @property
    def plausible(self) -> bool:
        """Whether the output follows from the inputs, apart from lost digits."""
        return self.ratio <= HARD_CAP or self.absmax <= ROUNDING_LIKE * self.largest

    def add(self, actual: Tensor, expected: Tensor, allowed: Tensor) -> None:
        """Add elements of the output; all three tensors are in float64 and of one shape.

        Raises ``WrongResultError`` for NaN or infinity at other places than in the reference.
        """
        if not expected.numel():
            return
        # Equal infinities match. NaN never does, or inputs with NaN would make any output correct.
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
    """Errors of one output, and of torch's operator on the same inputs."""

    found: ErrorStats
    baseline: ErrorStats | None
    eps: float
    """Of the output's dtype."""
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

    def require_correct(self) -> None:
        """Raise ``WrongResultError`` if an element is too far off, or too many are beyond their tolerance."""
        found = self.found
        which = f"its output {self.name!r} is " if self.name else ""
        of = f" of its output {self.name!r}" if self.name else ""
        limit = 1.0 + (BASELINE_FACTOR * self.baseline.ratio if self.baseline else 0.0)
        if not found.ratio <= min(limit, HARD_CAP):
            raise WrongResultError(
                f"{which}off by up to {found.absmax:.3g}, at one element {found.ratio:.3g} times the tolerance"
            )
        if found.matched < MATCHED:
            raise WrongResultError(
                f"{found.beyond} of {found.elements} elements{of} are beyond the tolerance, "
                f"the worst {found.ratio:.3g} times"
            )


@dataclass(frozen=True)
class OutputComparison:
    """Errors of all outputs of a call."""

    outputs: tuple[OutputErrors, ...]

    @property
    def worst(self) -> OutputErrors:
        """The output with the largest error relative to its tolerance."""
        return max(self.outputs, key=lambda output: output.found.ratio)

    @property
    def imprecise(self) -> bool:
        """Whether any output lost digits that torch's operator keeps."""
        return any(output.imprecise for output in self.outputs)

    @property
    def precision(self) -> float | None:
        """Largest mean error as a multiple of the baseline's; None without a baseline."""
        known = [output.precision for output in self.outputs if output.precision is not None]
        return max(known, default=None)

    def require_correct(self) -> None:
        """Raise ``WrongResultError`` unless every output passes."""
        for output in self.outputs:
            output.require_correct()
