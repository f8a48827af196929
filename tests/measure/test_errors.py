"""Errors are summed in few passes over a tensor, with the results of the formulas for each element."""

import pytest
import torch
from torch import Tensor

from kernels_bench_tools.measure.correctness import errors
from kernels_bench_tools.measure.correctness.errors import Expected, WrongResultError, measure_errors

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
DTYPES += [torch.int8, torch.int64, torch.bool]
RTOL, LEAST = 1e-2, 1e-3


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(errors, "_MANY", 0)  # one kernel computes all sums, also of few elements
    return request.param


def made(dtype: torch.dtype, *shape: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return an output and what the reference returned for it, which differ by rounding and at some elements by more."""
    torch.manual_seed(1)
    values = 3 * torch.randn(*shape, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    off = torch.where(torch.rand(*shape) < 0.01, 0.3, 0.0)
    if not (dtype.is_floating_point or dtype.is_complex):
        pair = (values + 4 * off).round().to(dtype), values.round().to(dtype)
    else:
        pair = (values * (1 + off)).to(dtype), values
    return pair[0].to(device), pair[1].to(device)


def element_by_element(actual: Tensor, expected: Tensor, more: Tensor | None) -> list[float]:
    a, e = errors.numbers(actual), errors.numbers(expected)
    alike = (a == e) | (a.isnan() & e.isnan())
    difference = torch.where(alike, 0.0, (a - e).abs())
    size = e.abs().nan_to_num(0.0, 0.0, 0.0)
    allowed = RTOL * size + LEAST + (0.0 if more is None else more)
    sums = difference.max(), difference.sum(), (difference / allowed).max(), (difference > allowed).sum()
    return [float(one) for one in (*sums, difference.numel(), size.max(), size.sum())]


def summed(actual: Tensor, expected: Tensor, more: Tensor | None = None) -> list[float]:
    found = measure_errors(actual, Expected(expected), RTOL, LEAST, more)
    sums = found.absmax, found.total, found.ratio, found.beyond
    return [*sums, found.elements, found.largest, found.size]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [2**17, 1000])
def test_sums_are_those_of_the_formulas_for_every_dtype(
    dtype: torch.dtype, chunk: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_CHUNK", chunk)
    actual, expected = made(dtype, 37, 129, device=device)
    more = torch.rand(37, 129, dtype=torch.float64, device=device)

    assert summed(actual, expected) == pytest.approx(element_by_element(actual, expected, None), rel=1e-12)
    assert summed(actual.T, expected.T, more.T) == pytest.approx(
        element_by_element(actual, expected, more), rel=1e-12
    )
    assert summed(actual[::2, 1:], expected[::2, 1:])[3] > 0
    of_rows = more[:, :1]
    assert summed(actual, expected, of_rows) == pytest.approx(
        element_by_element(actual, expected, of_rows), rel=1e-12
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_one_kernel_sums_the_usual_dtypes_of_any_size_on_a_gpu(dtype: torch.dtype) -> None:
    for shape in ((1, 1), (1, 255), (1031, 1033), (3, 2**20)):
        actual, expected = made(dtype, *shape, device="cuda")
        found = errors._fused_sums(actual, expected, RTOL, LEAST, None)
        assert found is not None or expected.numel() < errors._MANY
        assert summed(actual, expected) == pytest.approx(
            element_by_element(actual, expected, None), rel=1e-12
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_nan_and_infinity_are_errors_where_the_reference_has_none_or_others(
    dtype: torch.dtype, device: str
) -> None:
    actual, expected = made(dtype, 9, 11, device=device)
    for at, value in enumerate([float("nan"), float("inf"), -float("inf")][: 2 if dtype.is_complex else 3]):
        actual[at, at] = expected[at, at] = value

    if not dtype.is_complex:  # infinity minus itself is NaN in a complex number
        assert summed(actual, expected) == pytest.approx(
            element_by_element(actual, expected, None), rel=1e-12
        )
    for value in (float("nan"), float("inf"), 1.0):
        other = actual.clone()
        other[1 if value == 1.0 else 4, 1 if value == 1.0 else 4] = value
        with pytest.raises(WrongResultError, match="NaN or infinity"):
            summed(other, expected)


def test_nothing_has_no_errors() -> None:
    assert summed(torch.empty(0, 4), torch.empty(0, 4)) == [0.0] * 7


def test_the_tensors_are_left_as_they_are(device: str) -> None:
    for dtype in (torch.float64, torch.float32):
        actual, expected = made(dtype, 50, 60, device=device)
        expected[3, 4] = float("nan")
        actual[3, 4] = float("nan")
        before = actual.clone(), expected.clone()
        summed(actual, expected)

        assert torch.equal(actual.nan_to_num(7.0), before[0].nan_to_num(7.0))
        assert torch.equal(expected.nan_to_num(7.0), before[1].nan_to_num(7.0))
