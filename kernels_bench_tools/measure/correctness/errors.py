"""The errors of an output: how far its elements are from those of the reference, as sums over all of them.

A large output takes longer to compare than to compute, so each number of it is read as few times as its dtype allows:
values with NaN or infinity, which need care, are compared element by element only if there are any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import eps_of

UNEQUAL = 1e38
"""Ratio of an output that the operator's predicate does not accept."""
_CHUNK = 2**17
"""Elements that are compared at once on a CPU: intermediate results stay in its cache."""
_MANY = 2**20
"""Elements of a GPU from which one kernel computes all sums: its compiler takes half a second to start."""
_BLOCKS, _THREADS, _SUMS = 1024, 256, 7
_TYPES = {torch.float64: 0, torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
_KERNEL = """
extern "C" __global__ void sums(const void* actual, int type, const double* expected, const double* more,
                                int has_more, const double* given, double* found) {
  __shared__ double shared[256][7];
  const long long count = (long long)given[0];
  const double rtol = given[1], least = given[2];
  double own[7] = {0, 0, 0, 0, 0, 0, 0};
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
    double value;
    float half;
    switch (type) {
      case 0: value = ((const double*)actual)[i]; break;
      case 1: value = ((const float*)actual)[i]; break;
      case 2: asm("cvt.f32.f16 %0, %1;" : "=f"(half) : "h"(((const unsigned short*)actual)[i])); value = half; break;
      default: value = __uint_as_float((unsigned)((const unsigned short*)actual)[i] << 16);
    }
    const double size = fabs(expected[i]), error = fabs(value - expected[i]);
    const double allowed = rtol * size + least + (has_more ? more[i] : 0.0);
    const double kept = size <= 1.7976931348623157e308 ? size : 0.0;
    own[0] = fmax(own[0], kept); own[1] += kept; own[2] += kept * kept;
    own[3] = fmax(own[3], error); own[4] = fmax(own[4], error / allowed); own[5] += error;
    own[6] += error > allowed;
  }
  for (int k = 0; k < 7; k++) shared[threadIdx.x][k] = own[k];
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      for (int k = 0; k < 7; k++) {
        const double one = shared[threadIdx.x][k], other = shared[threadIdx.x + half][k];
        shared[threadIdx.x][k] = k == 0 || k == 3 || k == 4 ? fmax(one, other) : one + other;
      }
  }
  if (threadIdx.x < 7) found[threadIdx.x * gridDim.x + blockIdx.x] = shared[0][threadIdx.x];
}
"""
"""Of finite expected values the largest, the sum and the sum of squares; of errors the largest, the largest relative to what is
allowed, the sum, and how many are not allowed, from each block. An error that is NaN only shows in the sum."""


class WrongResultError(Exception):
    """The output is wrong or cannot be compared; the message gives the reason."""


def numbers(values: Tensor) -> Tensor:
    """Return values in twice the precision of float32, in which errors are computed."""
    return values.to(torch.complex128) if values.is_complex() else values.double()


def distance(left: Tensor, right: Tensor) -> Tensor:
    """Return absolute differences in float64.

    Equal infinities have none, and NaN has none to NaN.
    """
    a, b = numbers(left), numbers(right)
    difference = torch.where((a == b) | a.isnan() & b.isnan(), 0.0, (a - b).abs())
    if eps_of(left.dtype) or eps_of(right.dtype):
        return difference
    return torch.where(left == right, 0.0, difference.clamp(min=1.0))  # float64 has not all of int64


@dataclass(frozen=True)
class Expected:
    """What the reference returned for one output."""

    values: Tensor

    @cached_property
    def _norms(self) -> tuple[float, float, float]:
        """The largest absolute value, their sum, and the root of the sum of their squares."""
        values = numbers(self.values)
        if not values.numel():
            return 0.0, 0.0, 0.0
        if sums := _fused_sums(values, values, 0.0, 0.0, None):
            return sums[0], sums[1], sums[2] ** 0.5
        for kept in (values, None):
            kept = self.sizes() if kept is None else kept
            norms = [torch.linalg.vector_norm(kept, order) for order in (inf, 1, 2)]
            largest, total, root = torch.stack(norms).tolist()
            if isfinite(largest):
                break
        return largest, total, root

    @property
    def largest(self) -> float:
        return self._norms[0]

    @property
    def total(self) -> float:
        """Sum of the absolute values."""
        return self._norms[1]

    @property
    def usual(self) -> float:
        """Root mean square of the values; NaN and infinity count as 0."""
        return self._norms[2] / max(self.values.numel(), 1) ** 0.5

    def sizes(self) -> Tensor:
        """Return the absolute values in float64, with 0 for NaN and infinity."""
        return numbers(self.values).abs().nan_to_num_(0.0, 0.0, 0.0)


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

    def add(self, other: ErrorStats) -> None:
        self.absmax, self.ratio = max(self.absmax, other.absmax), max(self.ratio, other.ratio)
        self.largest = max(self.largest, other.largest)
        self.beyond, self.elements = self.beyond + other.beyond, self.elements + other.elements
        self.total, self.size = self.total + other.total, self.size + other.size

    def add_accepted(self, accepted: Tensor, elements: int) -> None:
        """Add elements on which the operator's predicate has decided."""
        beyond = int((~accepted).sum())
        self.beyond += beyond
        self.elements += elements
        self.ratio = max(self.ratio, UNEQUAL if beyond else 0.0)


def measure_errors(
    actual: Tensor, expected: Expected, rtol: float, least: float, more: Tensor | None = None
) -> ErrorStats:
    """Return the errors of a tensor of the reference's shape.

    Allowed is ``least + rtol * |expected|`` at each element, and there ``more``, if given. Raises ``WrongResultError`` for
    NaN or infinity at other places than in the reference.
    """
    found = ErrorStats(elements=expected.values.numel(), largest=expected.largest, size=expected.total)
    more = None if more is None else more.expand_as(expected.values)
    for left, right, extra in _chunks(actual, expected.values, more):
        absmax, ratio, total, beyond = _compare_chunk(left, right, rtol, least, extra)
        found.absmax, found.ratio = max(found.absmax, absmax), max(found.ratio, ratio)
        found.total, found.beyond = found.total + total, found.beyond + beyond
    return found


def _chunks(*tensors: Tensor | None) -> Iterator[Sequence[Tensor | None]]:
    """Yield parts of tensors of one shape, which fit into a CPU's cache; on other devices all of them at once."""
    first = tensors[0]
    assert first is not None
    if not first.numel():
        return
    if first.is_cuda or first.numel() <= _CHUNK:
        yield tensors
        return
    parts = [None if one is None else one.reshape(-1).split(_CHUNK) for one in tensors]
    for number in range(-(-first.numel() // _CHUNK)):
        yield [None if one is None else one[number] for one in parts]


def _compare_chunk(
    actual: Tensor, expected: Tensor, rtol: float, least: float, more: Tensor | None
) -> tuple[float, float, float, int]:
    """Return the largest error, also relative to the allowed one, the sum of errors, and how many are not allowed."""
    exact = not (eps_of(actual.dtype) or eps_of(expected.dtype))
    fused = None if exact else _fused_sums(actual, expected, rtol, least, more)
    if fused and isfinite(fused[5]):
        return fused[3], fused[4], fused[5], int(fused[6])
    size = numbers(expected)
    difference = distance(actual, expected) if exact else (numbers(actual) - size)
    difference = difference.abs() if difference.is_complex() else difference.abs_()
    size = size.abs()
    for is_again in (False, True):
        allowed = size.mul_(rtol).add_(least)
        if more is not None:
            allowed += more
        sums = difference.max(), (difference / allowed).max(), difference.sum()
        absmax, ratio, total = torch.stack(sums).tolist()  # waits for the device once
        if isfinite(absmax):
            return absmax, ratio, total, int((difference > allowed).sum()) if ratio >= 1 else 0
        if is_again:
            break
        difference, size = distance(actual, expected), numbers(expected).abs().nan_to_num_(0.0, 0.0, 0.0)
    raise WrongResultError("it has NaN or infinity where the reference has none, or the reverse")


def _fused_sums(
    actual: Tensor, expected: Tensor, rtol: float, least: float, more: Tensor | None
) -> list[float] | None:
    """Return the sums of ``_KERNEL``, in one pass; None on a CPU, for few elements or another type, and where it cannot be compiled."""
    types, few = (actual.dtype, expected.dtype), expected.numel() < _MANY
    if not actual.is_cuda or few or types[0] not in _TYPES or types[1] != torch.float64:
        return None
    if (kernel := _compiled(actual.device.index)) is None:
        return None
    given = torch.tensor([expected.numel(), rtol, least], dtype=torch.float64, device=actual.device)
    found = given.new_empty(_SUMS, _BLOCKS)
    values, wanted, extra = (
        one.contiguous() for one in (actual, expected, expected if more is None else more)
    )
    arguments = [values, _TYPES[types[0]], wanted, extra, int(more is not None), given, found]
    kernel((_BLOCKS, 1, 1), (_THREADS, 1, 1), arguments)
    largest, sums = found.amax(1), found.sum(1)
    return torch.stack([largest[n] if n in (0, 3, 4) else sums[n] for n in range(_SUMS)]).tolist()


@cache
def _compiled(_device: int) -> Any:
    """Return the kernel for a device; None if this torch or driver cannot compile it."""
    try:
        return torch.cuda._compile_kernel(_KERNEL, "sums")
    except (AttributeError, ImportError, OSError, RuntimeError):
        return None
