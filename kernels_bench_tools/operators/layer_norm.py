"""Layer normalization over the last axis, with weight and bias."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels_bench_tools.measure.inputs import constant_rows, padded_rows, spikes, transposed
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload
from kernels_bench_tools.measure.parts import with_at_most

EPSILON = 1e-5
# Sum, then difference, square and sum for the variance, then scale, weight and bias.
FLOPS_PER_ELEMENT = 7
ODD_SHAPES = ((3, 5, 1000), (2, 3, 769))


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last axis of ``x``."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


def make_inputs(workload: Workload, device: str, seed: int) -> Inputs:
    """Return ``x`` (batch, seq_len, hidden_dim), ``weight`` and ``bias`` (hidden_dim), all random."""
    batch, seq_len, hidden_dim = (int(workload.axes[axis]) for axis in ("batch", "seq_len", "hidden_dim"))
    shape = (batch, seq_len, hidden_dim)
    return _random(shape, workload.torch_dtype, device, seed)


def hard_cases(workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs that a careless kernel gets wrong, though ordinary ones come out right."""
    x, weight, bias = inputs
    yield "large offset", (x + 300, weight, bias)  # the variance as E[x²] - mean² cancels
    yield "tiny values", (x * 1e-3, weight, bias)  # eps is no longer negligible
    yield "constant rows", (constant_rows(x), weight, bias)  # the variance is 0
    yield "values x100", (x * 100, weight, bias)  # eps is
    yield "large values", (x * 1e4, weight, bias)  # their squares overflow float16
    yield "spikes", (spikes(x), weight, bias)
    yield "transposed", (transposed(x), weight, bias)
    yield "padded rows", (padded_rows(x), weight, bias)
    for number, shape in enumerate((*ODD_SHAPES, (1, 1, x.shape[-1]))):
        case = _random(shape, workload.torch_dtype, x.device, workload.seed + 1000 + number)
        yield f"shape {'x'.join(map(str, shape))}", case


def fewer_rows(workload: Workload) -> Workload:
    """Return the workload with as long rows, and at most 4 x 64 of them."""
    return with_at_most(workload, batch=4, seq_len=64)


def one_batch_entry_at_a_time(inputs: Inputs) -> Iterator[tuple[int, Inputs]]:
    """Yield each batch entry: a whole workload in float64 would need several times its memory."""
    x, weight, bias = inputs
    for index, entry in enumerate(x):
        yield index, (entry, weight, bias)


def _random(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device | str, seed: int) -> Inputs:
    # Never ones and zeros for weight and bias: a kernel that forgets one of them must show.
    generator = torch.Generator(device=device).manual_seed(seed)
    x = torch.randn(shape, generator=generator, device=device, dtype=dtype)
    weight, bias = torch.randn((2, shape[-1]), generator=generator, device=device, dtype=dtype)
    return x, weight.clone(), bias.clone()


def _workload(name: str, batch: int, seq_len: int, hidden_dim: int, dtype: str) -> Workload:
    axes = {"batch": batch, "seq_len": seq_len, "hidden_dim": hidden_dim}
    return Workload(name=name, axes=axes, dtype=dtype)


OPERATOR = Operator(
    name="layer_norm",
    title="Layer Normalization",
    axes=("batch", "seq_len", "hidden_dim"),
    workload_sets={
        # Those of huggingface/kernels-benchmarks, so that the two reports can be compared.
        "default": [
            _workload(f"LN_B16_S{seq_len}_D{hidden_dim}", 16, seq_len, hidden_dim, "bfloat16")
            for seq_len in (2048, 4096)
            for hidden_dim in (4096, 8192)
        ],
        "large": [_workload("LN_B1_S65536_D4096", 1, 65536, 4096, "bfloat16")],
        # One token, a few, and a small batch of them: what a serving engine normalizes at each step.
        "decode": [_workload(f"LN_B{tokens}_S1_D4096", tokens, 1, 4096, "bfloat16") for tokens in (1, 8, 64)],
        "cpu": [
            _workload(f"cpu_S{seq_len}_D1024", 1, seq_len, 1024, "float32") for seq_len in (128, 256, 512)
        ],
        "smoke": [_workload("smoke_S32_D256", 2, 32, 256, "float32")],
    },
    inputs=make_inputs,
    reference=reference,
    flops=lambda inputs: FLOPS_PER_ELEMENT * inputs[0].numel(),
    pieces=one_batch_entry_at_a_time,
    cases=hard_cases,
    baseline=reference,  # called with the workload's own type
    smaller=fewer_rows,
    gradients=(0, 1, 2),
)
