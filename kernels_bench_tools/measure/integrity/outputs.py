"""Is an output a plain tensor with memory of its own, computed by the time it was returned?"""

from __future__ import annotations

from typing import Any

import torch
import torch.overrides
from torch import Tensor
from torch.nn import Parameter

# Bound here, before an implementation is loaded.
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
_function_modes: Any = getattr(torch.overrides, "_get_current_function_mode_stack", None)


def why_lazy(output: Any, device: torch.device) -> str:
    """Return why an output may still have to be computed when it is read; empty if it is plain.

    Something that is no tensor at all is not lazy but wrong, which correctness finds.

    Args:
        output: What an implementation returned.
        device: Where its inputs are.
    """
    if not isinstance(output, Tensor):
        return ""
    if type(output) not in (Tensor, Parameter):
        return f"it is a {type(output).__name__}, which may compute when it is read"
    if output.is_meta or output.layout is not torch.strided:
        return f"it has no dense memory ({output.device}, {output.layout})"
    if output.device != device:
        return ""
    if output.is_conj() or output.is_neg():
        return "a sign of it is still to be flipped when it is read"
    if output.numel() and output.data_ptr() == 0:
        return "it has no memory"
    span = 1 + sum((size - 1) * stride for size, stride in zip(output.shape, output.stride(), strict=True))
    room = output.untyped_storage().nbytes() // output.element_size() - output.storage_offset()
    if output.numel() > min(span, room):
        return f"its {output.numel()} elements share the memory of {min(span, room)}"
    return ""


def active_modes() -> int:
    """Return how many modes now intercept torch's functions, in this thread."""
    dispatching = _dispatch_modes() if _dispatch_modes is not None else 0
    overriding = _function_modes() if _function_modes is not None else ()
    # torch.set_default_device leaves one that only chooses where new tensors are made.
    return int(dispatching) + sum(type(mode).__name__ != "DeviceContext" for mode in overriding)


def memory_of(value: Any) -> int:
    """Return the address of a tensor's storage; 0 for anything that has none."""
    if type(value) not in (Tensor, Parameter) or value.is_meta or value.layout is not torch.strided:
        return 0
    return value.untyped_storage().data_ptr()
