"""Calls that the self-check times: a few microseconds to ten milliseconds, one kernel or many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.inputs import random_tensors
from kernels_bench_tools.measure.operator import Inputs, size_in_bytes
from kernels_bench_tools.measure.timing.caches import input_set_count, make_input_sets
from kernels_bench_tools.operators import layer_norm, rms_norm, rotary

SLOWED_PERCENT = 2
"""Additional work of ``SLOWED``."""


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the arguments, which are normally distributed."""
    dtype: torch.dtype = torch.bfloat16
    repeated: bool = False
    """Whether it is timed in several fresh processes too."""

    def inputs(self, device: str, seed: int = 0) -> Inputs:
        return random_tensors(self.shapes, self.dtype, device, seed)

    def input_sets(self, device: str, seed: int = 0) -> list[Inputs]:
        """Return as many sets of arguments as for a record."""
        count = input_set_count(sum(size_in_bytes(value) for value in self.inputs(device, seed)), device)
        return make_input_sets(lambda number: self.inputs(device, seed + number), count, device)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


@cache
def compiled_layer_norm() -> Callable[..., Tensor]:
    """Return layer norm by Inductor's kernel, which torch's profiler slows down."""
    return torch.compile(layer_norm.reference, dynamic=False)


def flash_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention by torch's own FlashAttention."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return functional.scaled_dot_product_attention(query, key, value)


_MIB = 2**19
"""Elements of a MiB in bfloat16."""
_norm, _rotary, _softmax = layer_norm.reference, rotary.reference, partial(torch.softmax, dim=-1)
EMPTY_KERNEL = Case("empty kernel", lambda x: x.fill_(1.0), ((1,),), torch.float32)
"""Writes one number: the overhead of any kernel."""
PLAIN = Case("negate 200 MiB", torch.neg, ((200 * _MIB,),), repeated=True)
"""Takes about 100 us on an H200."""
_MORE = round(200 * _MIB * (1 + SLOWED_PERCENT / 100))
SLOWED = Case(f"negate 200 MiB +{SLOWED_PERCENT} %", torch.neg, ((_MORE,),), repeated=True)
_CUDA = (
    EMPTY_KERNEL,
    Case("SiLU 128x1536", functional.silu, ((128, 1536),), repeated=True),
    Case("SwiGLU 128x768", swiglu, ((128, 768),) * 2, repeated=True),
    Case("SwiGLU 256x1024", swiglu, ((256, 1024),) * 2),
    Case("SwiGLU 512x2048", swiglu, ((512, 2048),) * 2),
    Case("SwiGLU 2048x11008", swiglu, ((2048, 11008),) * 2, repeated=True),
    Case("SwiGLU 16384x14336", swiglu, ((16384, 14336),) * 2),
    Case("rotary 1x128x8x64 bf16", _rotary, ((1, 128, 8, 64),) * 2 + ((128, 32),) * 2, repeated=True),
    Case("rotary 1x512x32x128 fp32", _rotary, ((1, 512, 32, 128),) * 2 + ((512, 64),) * 2, torch.float32),
    Case(
        "rotary 2x2048x32x128 fp32",
        _rotary,
        ((2, 2048, 32, 128),) * 2 + ((2048, 64),) * 2,
        torch.float32,
        repeated=True,
    ),
    Case("rotary 8x8192x32x128 fp32", _rotary, ((8, 8192, 32, 128),) * 2 + ((8192, 64),) * 2, torch.float32),
    Case("layer_norm 512x4096", _norm, ((512, 4096), (4096,), (4096,)), repeated=True),
    Case("layer_norm 8192x4096", _norm, ((8192, 4096), (4096,), (4096,)), repeated=True),
    Case("layer_norm 32768x4096", _norm, ((32768, 4096), (4096,), (4096,)), repeated=True),
    Case("layer_norm 65536x8192", _norm, ((65536, 8192), (8192,), (8192,))),
    Case(
        "layer_norm 65536x4096 compiled",
        lambda *inputs: compiled_layer_norm()(*inputs),
        ((65536, 4096), (4096,), (4096,)),
    ),
    Case("softmax 4096x4096", _softmax, ((4096, 4096),), repeated=True),
    Case("softmax 8192x32768", _softmax, ((8192, 32768),)),
    Case("rms_norm 512x4096", rms_norm.reference, ((512, 4096), (4096,))),
    Case("rms_norm 32768x4096", rms_norm.reference, ((32768, 4096), (4096,))),
    Case("matmul 1024^3", torch.matmul, ((1024, 1024),) * 2),
    Case("matmul 4096^3", torch.matmul, ((4096, 4096),) * 2, repeated=True),
    Case("matmul 8192^3", torch.matmul, ((8192, 8192),) * 2),
    Case("SDPA flash 1x24x4224x128", flash_attention, ((1, 24, 4224, 128),) * 3, repeated=True),
    Case("negate 8 MiB", torch.neg, ((8 * _MIB,),), repeated=True),
    Case("negate 64 MiB", torch.neg, ((64 * _MIB,),)),
    Case("negate 512 MiB", torch.neg, ((512 * _MIB,),)),
    Case("negate 2048 MiB", torch.neg, ((2048 * _MIB,),)),
    PLAIN,
    Case("sum 64 MiB", torch.sum, ((64 * 2**18,),), torch.float32),
    Case("sum 1 GiB", torch.sum, ((2**28,),), torch.float32),
)
_CPU = (
    Case("SiLU 128x1536", functional.silu, ((128, 1536),), torch.float32),
    Case("layer_norm 512x1024", _norm, ((512, 1024), (1024,), (1024,)), torch.float32, repeated=True),
    # Compute-bound, since other processes disturb memory.
    Case("erf 4 MiB", torch.erf, ((2**20,),), torch.float32, repeated=True),
)


def find_cases(device: str, *, quick: bool) -> list[Case]:
    """Return the calls for a device; names are unique."""
    if not device.startswith("cuda"):
        return list(_CPU)
    return list(_CUDA[:: len(_CUDA) // 6] if quick else _CUDA)


def repeated_cases(device: str, *, quick: bool) -> list[Case]:
    """Return the calls that are timed in several fresh processes: on a GPU also a known slowdown of one."""
    cases = [case for case in find_cases(device, quick=quick) if case.repeated and case is not PLAIN]
    return [*cases, PLAIN, SLOWED] if device.startswith("cuda") else cases
