"""Memory of tensors: bitwise comparison, plain and lazy outputs, and poisoned memory."""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.overrides
from torch import Tensor
from torch.nn import Parameter
from torch.utils._device import DeviceContext

# Bound before an implementation is loaded.
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
_dispatches_to: Any = getattr(torch._C, "_dispatch_tls_is_dispatch_key_included", None)
_PYTHON: Any = getattr(torch._C.DispatchKey, "PythonDispatcher", None)
_function_modes: Any = getattr(torch.overrides, "_get_current_function_mode_stack", None)

_CHUNK, _HOST_CHUNK = 2**22, 2**15
_ALIGNMENT = 512
_SHIFTS = 128
_MASK = 2**64 - 1
_MIX = 0x9E3779B97F4A7C15
_MIN_BLOCKS, _MAX_BLOCKS = 3, 24
_BYTES = 256 * 2**20
"""Many small blocks are filled, since allocators keep lists of those and may hand out any."""


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors of one shape and dtype are identical, including NaN and signed zeros."""
    return torch.equal(_as_integers(left), _as_integers(right))


def fingerprint(value: Tensor) -> int:
    """Return 64 bits that change with any element's value or position, computed in chunks of 32 MiB; on a CPU of 256 KiB."""
    whole = _as_integers(value)
    if not whole.is_cuda:  # at the speed at which one thread reads memory
        return _host_fingerprint(whole)
    sums = []
    for chunk in whole.split(_CHUNK):
        weights = _weights(str(chunk.device))[: chunk.numel()]
        sums.append((chunk * weights).sum())
    total = whole.numel()
    for part in torch.stack(sums).tolist() if sums else []:
        total = (total * _MIX + part) & _MASK
    return total


def _host_fingerprint(whole: Tensor) -> int:
    numbers, weights = whole.numpy(), _host_weights()
    rows, rest = divmod(numbers.size, weights.size)
    with np.errstate(over="ignore"):
        sums = (numbers[: rows * weights.size].reshape(rows, -1) @ weights).tolist() if rows else []
        sums.append(int(np.dot(numbers[rows * weights.size :], weights[:rest])))
    total = numbers.size
    for part in sums:
        total = (total * _MIX + part) & _MASK
    return total


def copied(value: Any) -> Any:
    """Return a copy of a tensor with the same strides, since the layout may be the edge case; others as they are."""
    if not isinstance(value, Tensor):
        return value
    if value.is_contiguous():
        return value.clone()
    size = value.untyped_storage().nbytes() // value.element_size()
    memory = value.as_strided((size,), (1,), 0).clone()
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def copy_elsewhere(value: Any) -> Any:
    """Return a copy of a tensor at an address that no plain allocation of its size has; aligned to 512 bytes."""
    if not isinstance(value, Tensor) or not value.is_contiguous():
        return copied(value)
    step = _ALIGNMENT // value.element_size()
    shift = step * (1 + secrets.randbelow(_SHIFTS))
    memory = torch.empty(value.numel() + shift, dtype=value.dtype, device=value.device)
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    copy.set_(memory.untyped_storage(), shift, value.shape, value.stride())
    return copy.copy_(value)


@cache
def _host_weights() -> Any:
    return _weights("cpu")[:_HOST_CHUNK].numpy()


@cache
def _weights(device: str) -> Tensor:
    """Return odd random numbers: no difference modulo 2**64 vanishes when multiplied by one."""
    generator = torch.Generator(device=device).manual_seed(_MIX >> 1)
    return torch.randint(2**62, (_CHUNK,), generator=generator, device=device) | 1


def _as_integers(value: Tensor) -> Tensor:
    """Return the elements as a flat tensor of integers; a view where the memory allows it."""
    flat = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    size = flat.numel() * flat.element_size()
    for dtype, width in ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2)):
        if size % width == 0 and width >= flat.element_size():
            aligned = flat.storage_offset() * flat.element_size() % width == 0
            return (flat if aligned else flat.clone()).view(dtype)
    return flat.view(torch.uint8)


def is_dense(value: Tensor) -> bool:
    return value.layout is torch.strided and not (value.is_nested or value.is_quantized)


def lazy_reason(output: Any, device: torch.device) -> str:
    """Return why an output may be computed only when it is read; empty for a plain tensor, or no tensor at all."""
    if not isinstance(output, Tensor):
        return ""
    if type(output) not in (Tensor, Parameter):
        return f"it is a {type(output).__name__}, which may compute when it is read"
    if output.is_meta or not is_dense(output):
        return f"it has no dense memory ({output.device}, {output.layout})"
    if output.device != device:
        return ""
    if output.is_conj() or output.is_neg():
        return "its sign is only flipped when it is read"
    if output.numel() and output.data_ptr() == 0:
        return "it has no memory"
    span = 1 + sum((size - 1) * stride for size, stride in zip(output.shape, output.stride(), strict=True))
    room = output.untyped_storage().nbytes() // output.element_size() - output.storage_offset()
    if output.numel() > min(span, room):
        return f"its {output.numel()} elements share the memory of {min(span, room)}"
    return ""


def active_modes() -> int:
    """Return how many modes intercept torch's functions now, in this thread."""
    dispatching = _dispatch_modes() if _dispatch_modes is not None else 0
    dispatching += _dispatches_to is not None and _dispatches_to(_PYTHON)
    overriding = _function_modes() if _function_modes is not None else ()
    # torch.set_default_device adds a mode that only selects the device of new tensors.
    return int(dispatching) + sum(type(mode) is not DeviceContext for mode in overriding)


def storage_address(value: Any) -> int:
    """Return the address of a tensor's storage; 0 for values without one."""
    if type(value) not in (Tensor, Parameter) or value.is_meta or value.layout is not torch.strided:
        return 0
    return value.untyped_storage().data_ptr()


def poison_memory(like: Tensor, device: str | None = None) -> None:
    """Fill the memory that the next outputs like this tensor are likely to get with NaN; by default on its device.

    A kernel that skips elements then returns NaN instead of the previous call's correct result. Allocators hand out
    recently freed blocks, so blocks of this size are filled and freed; memory in use is not touched.
    """
    if not like.numel():
        return
    value = float("nan") if like.is_floating_point() or like.is_complex() else 113
    try:
        count = max(_MIN_BLOCKS, min(_MAX_BLOCKS, _BYTES // (like.numel() * like.element_size())))
        blocks = [
            torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device or like.device)
            for _ in range(count)
        ]
    except torch.OutOfMemoryError:  # then no free memory is left to be returned unwritten
        return
    for block in blocks:
        block.fill_(value)
