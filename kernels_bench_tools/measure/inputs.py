"""Building blocks for operator modules: workloads and their names, edge cases made from ordinary inputs, slices of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import Inputs, Tolerance, Workload, dtype_tolerance

SPIKE = 100.0
TAIL = 3
"""Columns at a row's end that a kernel with vectors of 4 elements may skip."""
SLICE_ELEMENTS = 1 << 24
"""Elements in a slice of rows: 134 MB in float64, of which a reference holds a few."""


def make_workloads(
    axes: Sequence[str],
    name: Callable[..., str],
    dtype: str,
    prefix: str,
    *sizes: Sequence[Sequence[Any]],
    groups: Mapping[str, str] | None = None,
) -> list[Workload]:
    """Return a workload for each size, which has the values of all axes; ``name`` gets them by name.

    With ``groups``, those of an operator's functions, the function is the first axis, and has the ``sizes`` in its place,
    or all that are given if these are one sequence.
    """
    made = []
    functions = groups or {"": ""}
    of_each = sizes * len(functions) if len(sizes) == 1 else sizes
    for (function, group), some in zip(functions.items(), of_each, strict=True):
        for size in some:
            values = dict(zip(axes, (function, *size) if groups else size, strict=True))
            made.append(Workload(name=prefix + name(**values), axes=values, dtype=dtype, group=group))
    return made


def named(prefixes: Mapping[str, str], sizes: str) -> Callable[..., str]:
    """Return what names workloads by a prefix for each function, and a template for the other axes."""
    return lambda function, **axes: f"{prefixes[function]}_{sizes.format(**axes)}"


def in_single(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Return a formula that is computed in float32, whose first output is rounded once, to the type of the first input."""

    def computed(x: Tensor, *rest: Any) -> Any:
        found = formula(*(one.float() if isinstance(one, Tensor) else one for one in (x, *rest)))
        return (found[0].to(x.dtype), *found[1:]) if isinstance(found, tuple) else found.to(x.dtype)

    return computed


def or_in_single(error: float) -> Callable[[torch.dtype], Tolerance]:
    """Return ``dtype_tolerance``, with another error in float32, such as that of long sums."""
    return lambda dtype: (
        Tolerance(rtol=error, atol=error) if dtype == torch.float32 else dtype_tolerance(dtype)
    )


def random_tensors(
    shapes: Iterable[Sequence[int]], dtype: torch.dtype, device: str | torch.device, seed: int
) -> tuple[Tensor, ...]:
    """Return normally distributed tensors of these shapes, all from one generator."""
    generator = torch.Generator(device=device).manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, device=device, dtype=dtype) for shape in shapes)


def changed(inputs: Inputs, change: Callable[[Tensor], Any], *positions: int) -> Inputs:
    """Return the inputs with those at these positions changed, unless they are None."""
    return tuple(
        change(value) if number in positions and value is not None else value
        for number, value in enumerate(inputs)
    )


def constant_rows(x: Tensor, value: float = 3.0) -> Tensor:
    """Return a tensor like ``x`` in which all elements are equal: variances are 0, maxima tie."""
    return torch.full_like(x, value)


def spikes(x: Tensor) -> Tensor:
    """Return ``x / 100`` with one large element per row, in varying columns; in the last rows, in the last columns."""
    small = x * 1e-2
    rows = small.reshape(-1, x.shape[-1])  # a copy that shares no memory with x
    count, columns = rows.shape
    row = torch.arange(count, device=x.device)
    column = row * 7919 % columns
    tail = min(TAIL, count, columns)
    column[count - tail :] = torch.arange(columns - tail, columns, device=x.device)
    rows[row, column] = SPIKE
    return rows.view(x.shape)


def transposed(x: Tensor, axis: int = 0) -> Tensor:
    """Return ``x``'s values and shape with ``axis`` and the next axis swapped in memory."""
    return x.transpose(axis, axis + 1).contiguous().transpose(axis, axis + 1)


def padded_rows(x: Tensor, columns: int = 8) -> Tensor:
    """Return ``x``'s values with this many unused columns, full of NaN, between the rows in memory."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + columns), float("nan"), dtype=x.dtype, device=x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def padded_differently(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return each tensor with padded rows, and with strides that no other one of its shape has."""
    return tuple(padded_rows(x, 8 * number) for number, x in enumerate(tensors, start=1))


def any_number(*positions: int) -> dict[str, tuple[int, ...]]:
    """Return, for ``nonfinite`` of an operator, that inputs may have NaN and both infinities."""
    return dict.fromkeys(("nan", "inf", "-inf"), positions)


def with_axes(workload: Workload, **axes: int | bool | str) -> Workload:
    return replace(workload, axes={**workload.axes, **axes})


def odd_shapes(
    workload: Workload,
    axes: Sequence[str],
    shapes: Iterable[Sequence[Any]],
    make_inputs: Callable[..., Inputs],
    device: torch.device,
) -> Iterator[tuple[str, Inputs]]:
    for number, shape in enumerate(shapes):
        odd = with_axes(workload, **dict(zip(axes, shape, strict=True)))
        yield f"shape {'x'.join(map(str, shape))}", make_inputs(odd, device, workload.seed + 1000 + number)


def limit_axes(workload: Workload, **limits: int) -> Workload:
    return with_axes(
        workload, **{axis: min(int(workload.axes[axis]), limit) for axis, limit in limits.items()}
    )


def parts(length: int, each: int, most: int = 0) -> Iterator[slice]:
    """Yield slices of an axis of this length, of at most ``most`` elements, by default :data:`SLICE_ELEMENTS`.

    ``each`` is how many elements are at one index of the axis.
    """
    step = max(1, (most or SLICE_ELEMENTS) // max(each, 1))
    for start in range(0, length, step):
        yield slice(start, start + step)


def sliced(
    *axes: int | None, into: int, times: float = 1
) -> Callable[[Inputs], Iterator[tuple[Any, Inputs]]]:
    """Return the ``slices`` of an operator whose outputs are cut along the axis ``into``, 0 or more, or -1.

    ``axes`` has for each input the axis along which it is cut, or None; inputs that are None stay so. A slice has as
    many elements of the first that is cut as :data:`SLICE_ELEMENTS` says, times ``times``.
    """

    def at(axis: int, part: slice) -> tuple[Any, ...]:
        return (..., part) if axis < 0 else (*[slice(None)] * axis, part)

    def slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
        paired = list(zip(inputs, axes, strict=False))  # gradients may not follow
        first, axis = next((value, axis) for value, axis in paired if axis is not None)
        length = first.shape[axis]
        for part in parts(length, first.numel() // length, int(SLICE_ELEMENTS * times)):
            own = (
                value if axis is None or value is None else value[at(axis, part)] for value, axis in paired
            )
            yield at(into, part), tuple(own)

    return slices


def row_slices(inputs: Inputs) -> Iterator[tuple[slice, Inputs]]:
    """Yield slices of rows, of every tensor among the inputs; other values are passed on as they are."""
    for part in parts(len(inputs[0]), inputs[0].shape[-1]):
        yield part, tuple(value[part] if isinstance(value, Tensor) else value for value in inputs)


def batch_slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    """Yield one batch entry at a time, of every tensor with as many axes as the first; other values are shared."""
    x = inputs[0]
    entries = {n for n, value in enumerate(inputs) if isinstance(value, Tensor) and value.dim() == x.dim()}
    for index in range(len(x)):
        yield index, tuple(value[index] if n in entries else value for n, value in enumerate(inputs))


def same_choice(x: Tensor, chosen: Tensor, expected: Tensor, axis: int = -1) -> Tensor:
    """Return where indices along an axis choose values that equal the expected ones, each element once.

    For the ``accept`` of top-k, argsort, argmax and the like, whose ties may go to either element.
    """
    if chosen.dim() < x.dim():
        chosen, expected = chosen.unsqueeze(axis), expected.unsqueeze(axis)
    found = x.gather(axis, chosen.clamp(0, x.shape[axis] - 1).long())
    once = (chosen.sort(axis).values.diff(dim=axis) != 0).all(axis, keepdim=True)
    inside = (chosen >= 0) & (chosen < x.shape[axis])
    return inside & once & (found == x.gather(axis, expected.long()))
