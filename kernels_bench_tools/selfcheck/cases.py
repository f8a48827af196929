"""Calls that the self-check times: a few microseconds to ten milliseconds, one kernel or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

SLOWDOWNS = (1, 2, 5)
"""Additional work in percent, of :func:`slowed_case`."""
CUDA_MIB = 200
"""MiB of bfloat16: an elementwise kernel over them takes about 100 us on an H200."""
CPU_MIB = 4


@dataclass(frozen=True)
class Case:
    """A call to time."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the arguments, which are normally distributed."""
    dtype: torch.dtype = torch.bfloat16
    across_processes: bool = False
    """Whether it is timed in several fresh processes too."""

    def inputs(self, device: str, seed: int = 0) -> Inputs:
        """Return the arguments on ``device``."""
        return random_tensors(self.shapes, self.dtype, device, seed)

    def input_sets(self, device: str, seed: int = 0) -> list[Inputs]:
        """Return as many sets of arguments as for a record."""
        count = input_set_count(sum(size_in_bytes(value) for value in self.inputs(device, seed)), device)
        return make_input_sets(lambda number: self.inputs(device, seed + number), count, device)


EMPTY_KERNEL = Case("empty kernel", lambda x: x.fill_(1.0), ((1,),), torch.float32)
"""Writes one number: the overhead of any kernel."""


def find_cases(device: str, *, quick: bool) -> list[Case]:
    """Return the calls for a device; names are unique."""
    cases = list(_cuda_cases() if device.startswith("cuda") else _cpu_cases())
    return cases[:: max(1, len(cases) // 6)] if quick and device.startswith("cuda") else cases


def repeated_cases(device: str, *, quick: bool) -> list[Case]:
    """Return the calls that are timed in several fresh processes: also known slowdowns of one, on a CPU unless ``quick``."""
    cases = [case for case in find_cases(device, quick=quick) if case.across_processes]
    if quick and not device.startswith("cuda"):
        return cases
    known = {case.name for case in cases}
    slowed = [slowed_case(device, percent) for percent in (0, *SLOWDOWNS)]
    return cases + [case for case in slowed if case.name not in known]


def slowed_case(device: str, percent: int = 0) -> Case:
    """Return an elementwise kernel over ``percent`` more elements than without."""
    cuda = device.startswith("cuda")
    name = f"negate {CUDA_MIB} MiB" if cuda else f"erf {CPU_MIB} MiB"
    elements = CUDA_MIB * 2**19 if cuda else CPU_MIB * 2**18
    return Case(
        f"{name} +{percent} %" if percent else name,
        # Compute-bound on the CPU, where other processes disturb memory.
        torch.neg if cuda else torch.erf,
        ((round(elements * (1 + percent / 100)),),),
        torch.bfloat16 if cuda else torch.float32,
        across_processes=True,
    )


def _cuda_cases() -> Iterator[Case]:
    yield EMPTY_KERNEL
    yield Case("SiLU 128x1536", functional.silu, ((128, 1536),), across_processes=True)
    for tokens, width, repeated in ((128, 768, True), (256, 1024, False), (512, 2048, False)):
        yield Case(f"SwiGLU {tokens}x{width}", swiglu, ((tokens, width),) * 2, across_processes=repeated)
    yield Case("SwiGLU 2048x11008", swiglu, ((2048, 11008),) * 2, across_processes=True)
    yield Case("SwiGLU 16384x14336", swiglu, ((16384, 14336),) * 2)
    yield from _rotary_cases()
    for rows, width in ((512, 4096), (8192, 4096), (32768, 4096), (65536, 8192)):
        shapes = ((rows, width), (width,), (width,))
        yield Case(f"layer_norm {rows}x{width}", layer_norm.reference, shapes, across_processes=rows <= 32768)
    shapes = ((65536, 4096), (4096,), (4096,))
    yield Case("layer_norm 65536x4096 compiled", compiled_layer_norm, shapes)
    softmax = partial(torch.softmax, dim=-1)
    yield Case("softmax 4096x4096", softmax, ((4096, 4096),), across_processes=True)
    yield Case("softmax 8192x32768", softmax, ((8192, 32768),))
    yield Case("rms_norm 512x4096", rms_norm.reference, ((512, 4096), (4096,)))
    yield Case("rms_norm 32768x4096", rms_norm.reference, ((32768, 4096), (4096,)))
    for size in (1024, 4096, 8192):
        yield Case(f"matmul {size}^3", torch.matmul, ((size, size),) * 2, across_processes=size == 4096)
    yield Case("SDPA flash 1x24x4224x128", flash_attention, ((1, 24, 4224, 128),) * 3, across_processes=True)
    for mib in (8, 64, 512, 2048):
        yield Case(f"negate {mib} MiB", torch.neg, ((mib * 2**19,),), across_processes=mib == 8)
    yield slowed_case("cuda")
    yield Case("sum 64 MiB", torch.sum, ((64 * 2**18,),), torch.float32)
    yield Case("sum 1 GiB", torch.sum, ((2**28,),), torch.float32)


def _rotary_cases() -> Iterator[Case]:
    sizes = (
        (1, 128, 8, 64, torch.bfloat16),
        (1, 512, 32, 128, torch.float32),
        (2, 2048, 32, 128, torch.float32),
        (8, 8192, 32, 128, torch.float32),
    )
    for batch, tokens, heads, width, dtype in sizes:
        half = (tokens, width // 2)
        shapes = ((batch, tokens, heads, width), (batch, tokens, heads, width), half, half)
        kind = "bf16" if dtype is torch.bfloat16 else "fp32"
        name = f"rotary {batch}x{tokens}x{heads}x{width} {kind}"
        yield Case(name, rotary.reference, shapes, dtype, across_processes=tokens in {128, 2048})


def _cpu_cases() -> Iterator[Case]:
    yield Case("SiLU 128x1536", functional.silu, ((128, 1536),), torch.float32)
    yield Case(
        "layer_norm 512x1024",
        layer_norm.reference,
        ((512, 1024), (1024,), (1024,)),
        torch.float32,
        across_processes=True,
    )
    yield slowed_case("cpu")


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``: two kernels."""
    return functional.silu(gate) * up


def compiled_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute layer norm by Inductor's kernel, which torch's profiler slows down."""
    return _compiled()(x, weight, bias)


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(layer_norm.reference, dynamic=False)


def flash_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention by torch's own FlashAttention."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return functional.scaled_dot_product_attention(query, key, value)
