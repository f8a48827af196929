"""Formulas of operators, written out: computed in float32 and rounded once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

FP8 = torch.float8_e4m3fn


def activation(x: Tensor, approximate: str = "") -> Tensor:
    f = x.float()
    if approximate == "geglu":
        gate, up = f.split(x.shape[-1] // 2, dim=-1)
        out = activation(gate, "tanh") * up
    elif approximate in ("silu", "quick_gelu"):
        out = f / (1 + torch.exp(-f * (1.702 if approximate == "quick_gelu" else 1)))
    elif approximate == "tanh":
        out = 0.5 * f * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (f + 0.044715 * f**3)))
    elif approximate:
        out = 0.5 * f * (1 + torch.erf(f / 2**0.5))
    else:
        gate, up = f.split(x.shape[-1] // 2, dim=-1)
        out = gate / (1 + torch.exp(-gate)) * up
    return out.to(x.dtype)


def cross_entropy(logits: Tensor, target: Tensor, gradients: bool = False) -> Any:
    included = target != -100
    shifted = logits.float() - logits.float().amax(-1, keepdim=True)
    total = shifted.exp().sum(-1)
    one_hot = functional.one_hot(target.clamp(min=0), logits.shape[1]).bool()
    loss = torch.where(included, total.log() - shifted[one_hot], 0.0)
    gradient = (shifted.exp() / total[:, None] - one_hot.float()) * included[:, None]
    return (loss, gradient.to(logits.dtype)) if gradients else loss


def deformable_attention(
    value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor, weights: Tensor, _: str
) -> Tensor:
    batch, queries, heads, levels, _, _ = locations.shape
    total = torch.zeros(batch, queries, heads, value.shape[-1])
    of_batch, of_head = torch.arange(batch)[:, None, None, None], torch.arange(heads)[:, None]
    for level in range(levels):
        height, width = shapes[level].tolist()
        x = (locations[:, :, :, level, :, 0] * width - 0.5).clamp(-9, width + 9)
        y = (locations[:, :, :, level, :, 1] * height - 0.5).clamp(-9, height + 9)
        for column, row in ((0, 0), (0, 1), (1, 0), (1, 1)):
            i, j = x.floor().long() + column, y.floor().long() + row
            share = (1 - (x - i).abs()) * (1 - (y - j).abs()) * weights[:, :, :, level]
            share = share * ((i >= 0) & (i < width) & (j >= 0) & (j < height))
            pixel = starts[level] + j.clamp(0, height - 1) * width + i.clamp(0, width - 1)
            total += (value[of_batch, pixel, of_head] * share[..., None]).sum(-2)
    return total.flatten(2)


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    return torch.stack([weight[row] for row in ids.tolist()])


def fp8_quant(x: Tensor, height: int, width: int, least: float = 1e-12) -> tuple[Tensor, Tensor]:
    rows = [part.float().abs().split(width, 1) for part in x.split(height)]
    scale = torch.stack([torch.stack([block.max() for block in row]) for row in rows]).clamp(min=least) / 448
    return (x.float() / spread(scale, x, height, width)).clamp(-448, 448).to(FP8), scale


def spread(scale: Tensor, x: Tensor, height: int, width: int) -> Tensor:
    """Return each number's scale."""
    rows, columns = x.shape
    return scale.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]


def rms_norm(x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-6) -> Any:
    hidden = x.float() if residual is None else x.float() + residual.float()
    out = hidden / (hidden.square().mean(-1, keepdim=True) + eps).sqrt() * weight.float()
    return out.to(x.dtype) if residual is None else (out.to(x.dtype), hidden.to(x.dtype))
