"""What is called wrong: functions that compute nearly what an operator asks for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from formulas import FP8, activation, cross_entropy, deformable_attention, fp8_quant, rms_norm, spread
from implementations import find, in_8_bits, judge, without_rest
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.correctness.compare import WrongResultError, compare
from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.models.baseline.L1 import FlashAttnPrefill, RotaryEmbedding
from kernels_bench_tools.operators.causal_conv1d import reference as conv1d
from kernels_bench_tools.operators.decoder_layer import layer_with, torch_layer
from kernels_bench_tools.operators.fp8_gemm import torch_linear
from kernels_bench_tools.operators.gated_delta_rule import torch_chunked as gated_delta_rule
from kernels_bench_tools.operators.grouped_gemm import reference as grouped
from kernels_bench_tools.operators.kv_store import torch_store
from kernels_bench_tools.operators.layer_norm import reference as layer_norm
from kernels_bench_tools.operators.llama4_moe import reference as llama4_moe
from kernels_bench_tools.operators.mlp import reference as mlp
from kernels_bench_tools.operators.moe import reference as moe
from kernels_bench_tools.operators.paged_attention import torch_paged
from kernels_bench_tools.operators.rotary import reference as rotary
from kernels_bench_tools.operators.selective_scan import torch_scan as selective_scan
from kernels_bench_tools.operators.ssd_scan import torch_scan as ssd_scan

ALL, HALF, TWO = ("float32", "bfloat16", "float16"), ("bfloat16",), ("float32", "bfloat16")
FP8_GROUPS = ("Row-wise", "Blocks of 1x128", "Blocks of 128x128")


def three_products(x: Tensor, weight: Tensor) -> Tensor:
    high = [one.bfloat16().float() for one in (x, weight)]
    low = [(one - large).bfloat16().float() for one, large in zip((x, weight), high, strict=True)]
    return high[0] @ high[1].t() + high[0] @ low[1].t() + low[0] @ high[1].t()


def zeros(x: Tensor, *_: Any) -> Tensor:
    return torch.zeros_like(x)


def last_zero(output: Tensor) -> Tensor:
    output[(-1,) * output.dim()] = 0
    return output


def off_by_one_at_the_end(output: Tensor) -> Tensor:
    output[-1, -1] += 1
    return output


def without_strides(*matrices: Tensor) -> list[Tensor]:
    """Read memory as if one row followed the other."""
    return [one.as_strided(one.shape, (one.shape[1], 1)) for one in matrices]


def swiglu_with(gate: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: (gate(x.float().chunk(2, -1)[0]) * x.float().chunk(2, -1)[1]).to(x.dtype)


def leaking_rows(x: Tensor, weight: Tensor, bias: Tensor, kind: str | None) -> Tensor:
    before = torch.cat((torch.zeros(1).to(x), x.flatten()[:-1])).reshape(x.shape)
    out = conv1d(x, weight, bias, None)
    out[..., 0] += weight[:, -2] * before[..., 0]
    return functional.silu(out) if kind else out


def losses_in_tiles(logits: Tensor, target: Tensor) -> Tensor:
    """Return what a running maximum gives that begins with -inf: NaN after a tile of -inf."""
    largest, total = torch.full((len(logits),), float("-inf")), torch.zeros(len(logits))
    for tile in logits.float().split(32, dim=-1):
        larger = torch.maximum(largest, tile.amax(-1))
        total = total * (largest - larger).exp() + (tile - larger[:, None]).exp().sum(-1)
        largest = larger
    return torch.where(target < 0, 0.0, total.log() + largest - of_target(logits, target))


def of_target(logits: Tensor, target: Tensor) -> Tensor:
    return logits.float()[torch.arange(len(logits)), target.clamp(min=0)]


def one_column_less(logits: Tensor, target: Tensor) -> Any:
    return cross_entropy(
        torch.cat((logits[:, :-1], torch.full_like(logits[:, :1], float("-inf"))), 1), target
    )


def with_gradient(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def function(logits: Tensor, target: Tensor, _: bool) -> Any:
        loss, gradient = cross_entropy(logits, target, True)
        return loss, change(gradient, logits, target)

    return function


def of_new_tokens_only(
    module: Any, query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, *new: Any
) -> Any:
    return FlashAttnPrefill.forward(module, query, keys, values, tables, new[0], new[0])


def with_inputs(**changed: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Return the decoder layer, called with other values of some inputs."""
    names = ("hidden", "residual", "kv_cache", "positions", "slots", "tables", "lengths", "cos_sin")

    def call(*inputs: Any) -> Any:
        given = [changed.get(name, lambda x: x)(x) for name, x in zip(names, inputs, strict=False)]
        return torch_layer(*given, *inputs[len(names) :])

    return call


def layer_on_a_copy(hidden: Tensor, residual: Tensor | None, cache: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return (*torch_layer(hidden, residual, cache.clone(), *rest)[:2], cache)


def truncated_fp8(x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Values rounded toward zero: three bits of mantissa kept, the others dropped."""
    scale = fp8_quant(x, height, width)[1]
    exact = x.float() / spread(scale, x, height, width)
    step = torch.exp2(exact.abs().clamp(min=2**-6).log2().floor() - 3)
    return ((exact / step).trunc() * step).to(FP8), scale


def zero_scales(x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    scale = fp8_quant(x, height, width, least=0.0)[1]
    return (x.float() / spread(scale, x, height, width)).to(FP8), scale


def one_scale(x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().max() / 448
    return (x.float() / scale).to(FP8), scale.expand_as(fp8_quant(x, height, width)[1]).clone()


def quantized(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    return lambda *given: change(*fp8_quant(*given))


def overflowing_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = functional.linear(x, gate_up).float().chunk(2, dim=-1)
    return functional.linear((gate * (gate.exp() / (1 + gate.exp())) * up).to(x.dtype), down)


def overflowing_moe(x: Tensor, logits: Tensor, w13: Tensor, w2: Tensor, top_k: int) -> Tensor:
    weights = logits.float().exp() / logits.float().exp().sum(-1, keepdim=True)
    return moe(x, weights.log().to(logits.dtype), w13, w2, top_k)


def moe_in_8_bits(x: Tensor, logits: Tensor, w13: Tensor, w2: Tensor, top_k: int) -> Tensor:
    weights = (in_8_bits(one.unflatten(-1, (-1, 8))).flatten(-2) for one in (w13, w2))
    return moe(x.float(), logits.float(), *weights, top_k).to(x.dtype)


def interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    pairs = (torch.cat((x[..., ::2], x[..., 1::2]), -1) for x in (q, k))
    return tuple(torch.stack(x.chunk(2, -1), -1).flatten(-2) for x in rotary(*pairs, cos, sin))


def last_key_as_it_was(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    rotated = rotary(q, k, cos, sin)
    rotated[1][:, -1] = k[:, -1]
    return rotated


def unused_slot(slots: Tensor) -> Tensor:
    return torch.tensor([next(slot for slot in range(len(slots) + 1) if slot not in slots)])


def of_chunks(function: Callable[..., Any], axis: int) -> Callable[..., Any]:
    """Return what computes each 64 tokens as if nothing came before, and the state of the last of them."""

    def call(*inputs: Any) -> Any:
        length = inputs[0].shape[axis]
        outputs, state = [], None
        for first in range(0, length, 64):
            given = [
                one.narrow(axis, first, min(64, length - first))
                if isinstance(one, Tensor) and one.dim() > 2 and one.shape[axis] == length
                else one
                for one in inputs
            ]
            out, state = function(*given)
            outputs.append(out)
        return torch.cat(outputs, axis), state

    return call


def with_one(
    function: Callable[..., Any], number: int, change: Callable[[Tensor], Tensor]
) -> Callable[..., Any]:
    """Return the function, called with another value of one input."""

    def call(*given: Any) -> Any:
        changed = list(given)
        changed[number] = change(given[number])
        return function(*changed)

    return call


def last_state(function: Callable[..., Any], change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        out, state = function(*given)
        return out, change(state)

    return call


def scans(function: Callable[..., Any], axis: int, decay: int, key: int) -> dict[str, Callable[..., Any]]:
    """Return wrong forms of a scan, given the axis of tokens and the positions of what decays and of what is written under."""
    return {
        "chunks that forget": of_chunks(function, axis),
        "no decay": with_one(function, decay, torch.zeros_like),
        "a tenth less decay": with_one(function, decay, lambda x: x * 0.9),
        "keys of the next token": with_one(function, key, lambda x: x.roll(1, axis)),
        "the state is zero": last_state(function, torch.zeros_like),
        "half of the state": last_state(function, lambda x: torch.cat((x[..., :-1], 0 * x[..., -1:]), -1)),
        "backwards": lambda *given: function(
            *(one.flip(axis) if isinstance(one, Tensor) and one.dim() > 2 else one for one in given)
        ),
    }


def steps(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {
        "without the state": lambda *given: function(*given[:-1], None),
        "the state before": lambda *given: (function(*given)[0], given[-1].clone()),
        "another sequence's state": with_one(function, -1, lambda x: x.roll(1, 0)),
    }


def sampled(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    return lambda value, shapes, starts, locations, weights, maps: deformable_attention(
        value, shapes, starts, *change(locations, weights), maps
    )


DECODE = {"kind": "qwen3", "residual": False, "sequences": 3, "tokens": 1}
BLOCKS = {"tokens": 130, "hidden_dim": 520}
# Operator, groups, types and changed axes of the smoke workload; wrong functions by what they do.
WRONG: list[tuple[str, tuple[str, ...], tuple[str, ...], dict[str, Any], dict[str, Callable[..., Any]]]] = [
    (
        "activation",
        ("SwiGLU",),
        ALL,
        {},
        {
            "all zero": lambda x: torch.zeros_like(x[:, ::2]).contiguous(),
            "the halves swapped": lambda x: activation(x.roll(x.shape[-1] // 2, dims=-1)),
            "even and odd columns": lambda x: functional.silu(x[:, ::2]) * x[:, 1::2],
            "a sigmoid without its gate": swiglu_with(torch.sigmoid),
            "no second half": lambda x: functional.silu(x.chunk(2, -1)[0]),
            "GELU for SiLU": swiglu_with(functional.gelu),
            "an exponential that overflows": swiglu_with(lambda gate: gate * gate.exp() / (1 + gate.exp())),
            "the last number": lambda x: off_by_one_at_the_end(activation(x)),
            "what follows whole tiles of 2048 columns": lambda x: without_rest(activation(x), 2048),
        },
    ),
    (
        "activation",
        ("GELU (tanh)", "GELU (erf)"),
        ALL,
        {},
        {
            "all zero": zeros,
            "the other form": lambda x, form: activation(x, {"tanh": "none", "none": "tanh"}[form]),
            "the sigmoid approximation": lambda x, _: x * torch.sigmoid(1.702 * x),
            "ReLU": lambda x, _: functional.relu(x),
            "no cubic term": lambda x, _: 0.5 * x * (1 + torch.tanh(0.7978845608 * x)),
            "the last number": lambda x, form: off_by_one_at_the_end(activation(x, form)),
        },
    ),
    (
        "causal_conv1d",
        ("",),
        TWO,
        {},
        {
            "a row that begins with the end of the one before": leaking_rows,
            "the last number": lambda *given: last_zero(conv1d(*given)),
            "taps reversed": lambda x, w, b, a: conv1d(x, w.flip(-1), b, a),
            "a look ahead": lambda x, w, b, a: conv1d(x.flip(-1), w, b, a).flip(-1),
            "no bias": lambda x, w, b, a: conv1d(x, w, torch.zeros_like(b), a),
            "no SiLU": lambda x, w, b, a: conv1d(x, w, b, None),
            "GELU": lambda x, w, b, a: functional.gelu(conv1d(x, w, b, None)),
            "no first tap": lambda x, w, b, a: conv1d(
                x, w * torch.arange(w.shape[1]).clamp(max=1).to(w), b, a
            ),
            "zeros": zeros,
        },
    ),
    (
        "cross_entropy",
        ("Forward",),
        ALL,
        {},
        {
            "NaN after a tile of -inf": losses_in_tiles,
            "all zero": lambda x, target: torch.zeros(len(x)),
            "the mean of all": lambda x, target: cross_entropy(x, target).mean().expand(len(x)).clone(),
            "no sum": lambda x, target: -of_target(x, target),
            "ignored tokens too": lambda x, target: cross_entropy(x, target.clamp(min=0)),
            "no maximum taken off": lambda x, target: torch.where(
                target < 0, 0.0, x.float().exp().sum(-1).log() - of_target(x, target)
            ),
            "the last column": one_column_less,
            "in the type of the logits": lambda x, target: cross_entropy(x, target).half(),
        },
    ),
    (
        "cross_entropy",
        ("Forward with gradients",),
        ALL,
        {},
        {
            "all zero": with_gradient(lambda gradient, x, target: torch.zeros_like(gradient)),
            "only the targets": with_gradient(lambda gradient, x, target: gradient * (gradient < 0)),
            "no targets": with_gradient(lambda gradient, x, target: x.float().softmax(-1).to(x.dtype)),
            "of the mean": with_gradient(lambda gradient, x, target: gradient / len(x)),
            "ignored tokens too": with_gradient(
                lambda gradient, x, target: cross_entropy(x, target.clamp(min=0), True)[1]
            ),
            "the last column": with_gradient(
                lambda gradient, x, target: torch.cat((gradient[:, :-1], gradient[:, :1] * 0), -1)
            ),
        },
    ),
    (
        "decoder_layer",
        ("",),
        HALF,
        {},
        {
            "no residual": with_inputs(residual=lambda _: None),
            "slots in another order": with_inputs(slots=lambda x: x.flip(0)),
            "a copy of the cache": layer_on_a_copy,
            "no rotation": layer_with({RotaryEmbedding: lambda _, positions, *qk: qk}),
            "no earlier tokens": layer_with({FlashAttnPrefill: of_new_tokens_only}),
        },
    ),
    (
        "decoder_layer",
        ("",),
        HALF,
        {"kind": "qwen2"},
        {"no bias": lambda *x: torch_layer(*x[:10], None, *x[11:])},
    ),
    (
        "decoder_layer",
        ("",),
        HALF,
        DECODE,
        {
            "positions from 0": with_inputs(positions=lambda x: x - x.min()),
            "slots in another order": with_inputs(slots=lambda x: x.flip(0)),
            "tables in another order": with_inputs(tables=lambda x: x.flip(0)),
            "all slots of the blocks": with_inputs(lengths=lambda x: x + 4),
            "a copy of the cache": layer_on_a_copy,
            "no rotation": layer_with({RotaryEmbedding: lambda _, positions, *qk: qk}),
        },
    ),
    (
        "embedding",
        ("",),
        HALF,
        {},
        {
            "zeros": lambda weight, ids: torch.zeros(len(ids), weight.shape[1], dtype=weight.dtype),
            "the next row": lambda weight, ids: weight[(ids + 1) % len(weight)],
            "the last token forgotten": lambda weight, ids: torch.cat((weight[ids[:-1]], weight[:1])),
            "tokens after whole tiles of 32": lambda weight, ids: without_rest(weight[ids], 32, axis=0),
            "columns after whole tiles of 4096": lambda weight, ids: without_rest(weight[ids], 4096),
            "one rounding off": lambda weight, ids: torch.nextafter(weight[ids], torch.full((), torch.inf)),
            "a view of the weight's first rows": lambda weight, ids: weight[: len(ids)],
        },
    ),
    (
        "fp8_gemm",
        ("Row-wise", "Blocks of 128"),
        ("float8_e4m3fn",),
        {},
        {
            "all zero": lambda x, s, w, t: torch.zeros(x.shape[0], w.shape[0], dtype=torch.bfloat16),
            "no scales": lambda x, s, w, t: functional.linear(x.float(), w.float()).bfloat16(),
            "no scales of the activations": lambda x, s, w, t: torch_linear(x, torch.ones_like(s), w, t),
            "the next token's scale": lambda x, s, w, t: torch_linear(x, s.roll(1, 0), w, t),
            "the next row's scale": lambda x, s, w, t: torch_linear(x, s, w, t.roll(1, 0)),
            "scales in half precision": lambda x, s, w, t: torch_linear(
                x, s.half().float(), w, t.half().float()
            ),
            "a column left out": lambda x, s, w, t: torch_linear(
                torch.cat((x[:, :-1], torch.zeros(len(x), 1).to(x.dtype)), 1), s, w, t
            ),
            "float32 returned": lambda x, s, w, t: torch_linear(x, s, w, t).float(),
        },
    ),
    (
        "fp8_gemm",
        ("Blocks of 128",),
        ("float8_e4m3fn",),
        {},
        {
            "the first block's scale": lambda x, s, w, t: torch_linear(
                x, s[:, :1].expand_as(s), w, t[:, :1].expand_as(t)
            )
        },
    ),
    (
        "fp8_quant",
        FP8_GROUPS,
        ALL,
        BLOCKS,
        {
            "all zero": quantized(lambda values, scale: (torch.zeros_like(values), torch.zeros_like(scale))),
            "zero values": quantized(lambda values, scale: (torch.zeros(values.shape).to(FP8), scale)),
            "zero scales": quantized(lambda values, scale: (values, torch.zeros_like(scale))),
            "no scales": lambda x, h, w: (
                x.float().clamp(-448, 448).to(FP8),
                torch.ones_like(fp8_quant(x, h, w)[1]),
            ),
            "scales the other way": quantized(lambda values, scale: (values, 1 / scale)),
            "a scale for the tensor": one_scale,
            "scales in half precision": quantized(lambda values, scale: (values, scale.bfloat16().float())),
            "bfloat16 stored": quantized(lambda values, scale: (values.bfloat16(), scale)),
            "the other FP8": quantized(lambda values, scale: (values.float().to(torch.float8_e5m2), scale)),
            "its digits": quantized(
                lambda values, scale: (values.float().to(torch.float8_e5m2).float().to(FP8), scale)
            ),
            "truncated": truncated_fp8,
            "zeros over zero": zero_scales,
        },
    ),
    (
        "activation",
        ("QuickGELU",),
        TWO,
        {},
        {
            "SiLU": lambda x, _: functional.silu(x),
            "GELU": lambda x, _: functional.gelu(x),
            "1.7": lambda x, _: x * torch.sigmoid(1.7 * x.float()).to(x.dtype) + 0.01,
        },
    ),
    (
        "activation",
        ("GeGLU",),
        TWO,
        {},
        {
            "erf": lambda x, _: functional.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
            "up first": lambda x, _: activation(x.roll(x.shape[1] // 2, 1), "geglu"),
            "SwiGLU": lambda x, _: activation(x),
        },
    ),
    ("selective_scan", ("Prefill",), TWO, {}, scans(selective_scan, 2, 2, 3)),
    ("selective_scan", ("Step",), TWO, {}, steps(selective_scan)),
    ("gated_delta_rule", ("Prefill",), TWO, {}, scans(gated_delta_rule, 1, 3, 1)),
    ("gated_delta_rule", ("Step",), TWO, {}, steps(gated_delta_rule)),
    ("ssd_scan", ("Prefill",), TWO, {}, scans(ssd_scan, 1, 2, 3)),
    ("ssd_scan", ("Step",), TWO, {}, steps(ssd_scan)),
    (
        "deformable_attention",
        ("",),
        ("float32",),
        {},
        {
            "all zero": lambda value, shapes, starts, locations, *_: value.new_zeros(
                *locations.shape[:2], value[0, 0].numel()
            ),
            "y before x": sampled(lambda locations, weights: (locations.flip(-1), weights)),
            "aligned corners": lambda value, shapes, starts, locations, *rest: deformable_attention(
                value,
                shapes,
                starts,
                (locations * (shapes.flip(1)[:, None] - 1) + 0.5) / shapes.flip(1)[:, None],
                *rest,
            ),
            "borders repeated": sampled(lambda locations, weights: (locations.clamp(0, 1), weights)),
            "equal weights": sampled(
                lambda locations, weights: (locations, weights.mean((3, 4), True) + 0 * weights)
            ),
            "the last point left out": sampled(
                lambda locations, weights: (
                    locations,
                    torch.cat((weights[..., :-1], 0 * weights[..., -1:]), -1),
                )
            ),
            "heads in another order": lambda value, *rest: deformable_attention(value.flip(2), *rest),
        },
    ),
    (
        "llama4_moe",
        ("",),
        HALF,
        {"tokens": 24},
        {
            "no shared expert": lambda *given: llama4_moe(*given[:4], *map(torch.zeros_like, given[4:])),
            "weights on the results": lambda x, logits, w13, w2, *shared: llama4_moe(
                x, logits * 0 + (logits == logits.amax(-1, keepdim=True)) * 100, w13, w2, *shared
            ),
            "a softmax": lambda x, logits, *rest: llama4_moe(
                x, logits.float().softmax(-1).logit().to(x.dtype), *rest
            ),
            "the next expert": lambda x, logits, w13, *rest: llama4_moe(x, logits, w13.roll(1, 0), *rest),
            "the last token left out": lambda *given: functional.pad(llama4_moe(*given)[:-1], (0, 0, 0, 1)),
        },
    ),
    (
        "grouped_gemm",
        ("",),
        HALF,
        {},
        {
            "all zero": lambda x, weight, ends: x.new_zeros(x.shape[0], weight.shape[1]),
            "the first expert for all": lambda x, weight, ends: x @ weight[0].t(),
            "the next expert": lambda x, weight, ends: grouped(x, weight.roll(1, 0), ends),
            "the last row left out": lambda *given: functional.pad(grouped(*given)[:-1], (0, 0, 0, 1)),
            "strides ignored": lambda x, *rest: grouped(*without_strides(x), *rest),
        },
    ),
    (
        "kv_store",
        ("",),
        HALF,
        {},
        {
            "nothing": lambda key, value, keys, values, slots: (keys, values),
            "values not written": lambda key, value, keys, values, slots: (
                torch_store(key, value, keys, values.clone(), slots)[0],
                values,
            ),
            "keys as values": lambda key, value, *rest: torch_store(key, key, *rest),
            "the next slot": lambda key, value, keys, values, slots: torch_store(
                key, value, keys, values, (slots + 1) % (keys.shape[0] * keys.shape[1])
            ),
            "the last token forgotten": lambda key, value, keys, values, slots: torch_store(
                key[:-1], value[:-1], keys, values, slots[:-1]
            ),
            "a slot more": lambda key, value, keys, values, slots: torch_store(
                torch.cat((key, key[:1])),
                torch.cat((value, value[:1])),
                keys,
                values,
                torch.cat((slots, unused_slot(slots))),
            ),
        },
    ),
    (
        "layer_norm",
        ("",),
        TWO,
        {},
        {
            "all zero": zeros,
            "no bias": lambda x, w, b, *eps: layer_norm(x, w, torch.zeros_like(b), *eps),
            "no weight": lambda x, w, b, *eps: layer_norm(x, torch.ones_like(w), b, *eps),
            "one eps for all": lambda x, w, b, *eps: layer_norm(x, w, b),
            "RMSNorm": lambda x, w, b, *eps: functional.rms_norm(x, x.shape[-1:], w, *(eps or (1e-5,))) + b,
            "a column less in the variance": lambda x, w, b, *eps: (
                (layer_norm(x, w, b, *eps) - b) * (1 - 1 / x.shape[-1]) ** 0.5 + b
            ),
            "what follows whole tiles of 2048 columns": lambda *given: without_rest(layer_norm(*given), 2048),
        },
    ),
    ("matmul", ("Linear",), ("float32",), {}, {"three products in bfloat16": three_products}),
    (
        "matmul",
        ("Linear with bias",),
        HALF,
        {},
        {
            "all zero": lambda x, weight, bias: x.new_zeros(x.shape[0], weight.shape[0]),
            "no bias": lambda x, weight, bias: x @ weight.t(),
            "a column left out": lambda x, weight, bias: x[:, :-1] @ weight[:, :-1].t() + bias,
            **{
                f"what follows whole tiles of {rows} rows": lambda x, weight, bias, rows=rows: without_rest(
                    x @ weight.t() + bias, rows, axis=0
                )
                for rows in (128, 1024)
            },
            "rounded to FP8": lambda x, weight, bias: x.to(FP8).to(x.dtype) @ weight.t() + bias,
            "strides ignored": lambda x, weight, bias: x @ without_strides(weight)[0].t() + bias,
        },
    ),
    (
        "mlp",
        ("",),
        HALF,
        {},
        {
            "gate and up swapped": lambda x, gate_up, down: mlp(x, gate_up.roll(len(gate_up) // 2, 0), down),
            "gate and up interleaved": lambda x, gate_up, down: mlp(
                x, gate_up.view(2, -1, x.shape[1]).transpose(0, 1).reshape(gate_up.shape), down
            ),
            "tokens after whole tiles of 128": lambda *given: without_rest(mlp(*given), 128, axis=0),
            "without SiLU": lambda x, gate_up, down: functional.linear(
                torch.mul(*functional.linear(x, gate_up).chunk(2, dim=-1)), down
            ),
            "an exponential that overflows": overflowing_mlp,
            "strides ignored": lambda *given: mlp(*without_strides(*given)),
            "the last weights in 8 bits": lambda x, gate_up, down: mlp(
                x.float(), gate_up.float(), in_8_bits(down)
            ).to(x.dtype),
        },
    ),
    (
        "moe",
        ("",),
        HALF,
        {},
        {
            "gate and up swapped": lambda x, logits, w13, *rest: moe(x, logits, w13.roll(48, 1), *rest),
            "the next expert": lambda x, logits, w13, *rest: moe(x, logits, w13.roll(1, 0), *rest),
            "one expert less": lambda *given: moe(*given[:4], max(given[4] - 1, 1)),
            "equal weights": lambda x, logits, *rest: moe(x, logits * 1e-6, *rest),
            "weights of the next token": lambda x, logits, *rest: moe(
                x, logits * (logits.roll(1, 0).std(-1) / logits.std(-1))[:, None], *rest
            ),
            "the last token left out": lambda *given: functional.pad(moe(*given)[:-1], (0, 0, 0, 1)),
            "an exponential that overflows": overflowing_moe,
            "weights in 8 bits, in groups of 8": moe_in_8_bits,
        },
    ),
    (
        "paged_attention",
        ("",),
        HALF,
        {},
        {
            "all zero": zeros,
            "blocks in the order of the cache": lambda q, k, v, tables, lengths: torch_paged(
                q, k, v, torch.arange(tables.numel()).view(tables.shape), lengths
            ),
            "all lengths the longest": lambda q, k, v, tables, lengths: torch_paged(
                q, k, v, tables, lengths.max().expand_as(lengths)
            ),
            "the last token forgotten": lambda q, k, v, tables, lengths: torch_paged(
                q, k, v, tables, (lengths - 1).clamp(min=1)
            ),
            "key heads in turn": lambda q, k, v, tables, lengths: torch_paged(
                q.unflatten(1, (-1, k.shape[2])).transpose(1, 2).flatten(1, 2), k, v, tables, lengths
            ),
            "keys as values": lambda q, k, v, tables, lengths: torch_paged(q, k, k, tables, lengths),
        },
    ),
    (
        "rms_norm",
        ("RMSNorm",),
        ALL,
        {},
        {
            "all zero": zeros,
            "no weight": lambda x, weight, _, eps: rms_norm(x, torch.ones_like(weight), eps=eps),
            **{
                f"eps {eps} always": lambda x, weight, *_, eps=eps: rms_norm(x, weight, eps=eps)
                for eps in (1e-6, 1e-5, 0.0)
            },
            "layer norm": lambda x, weight, _, eps: functional.layer_norm(x, x.shape[-1:], weight, None, eps),
            "sum for mean": lambda x, *rest: rms_norm(x, *rest) / x.shape[-1] ** 0.5,
            "a column less in the mean": lambda x, *rest: rms_norm(x, *rest) * (1 - 1 / x.shape[-1]) ** 0.5,
            "the last column": lambda x, *rest: functional.pad(rms_norm(x, *rest)[..., :-1], (0, 1)),
            "what follows whole tiles of 2048 columns": lambda *given: without_rest(rms_norm(*given), 2048),
        },
    ),
    (
        "rms_norm",
        ("RMSNorm with residual",),
        HALF,
        {},
        {
            "one output": lambda x, weight, _, eps: rms_norm(x, weight, eps=eps),
            "the residual left out": lambda x, weight, residual, eps: (
                rms_norm(x, weight, eps=eps),
                x + residual,
            ),
            "the old residual": lambda x, weight, residual, eps: (
                rms_norm(x + residual, weight, eps=eps),
                residual.clone(),
            ),
            "one eps for all": lambda x, weight, residual, _: rms_norm(x, weight, residual, 1e-6),
            "all zero": lambda x, *_: tuple(torch.zeros_like(x) for _ in range(2)),
            "a residual with the strides of x": lambda x, weight, residual, eps: rms_norm(
                x, weight, residual.as_strided(x.shape, x.stride()), eps
            ),
        },
    ),
    (
        "rotary",
        ("",),
        TWO,
        {},
        {
            "interleaved": interleaved,
            "the last token": last_key_as_it_was,
            "backwards": lambda q, k, cos, sin: rotary(q, k, cos, -sin),
            "cos is sin": lambda q, k, cos, sin: rotary(q, k, sin, cos),
            "one angle": lambda q, k, cos, sin: rotary(q, k, cos[:1].expand_as(cos), sin[:1].expand_as(sin)),
            "k as it was": lambda q, k, cos, sin: (rotary(q, k, cos, sin)[0], k.clone()),
            "zeros": lambda q, k, cos, sin: tuple(torch.zeros_like(x) for x in (q, k)),
            "q only": lambda q, k, cos, sin: rotary(q, k, cos, sin)[0],
        },
    ),
]


@pytest.mark.parametrize(
    ("operator", "group", "dtype", "axes", "function"),
    [
        pytest.param(
            operator, group, dtype, axes, function, id="-".join((operator, group, dtype, *axes, name))
        )
        for operator, groups, dtypes, axes, functions in WRONG
        for name, function in functions.items()
        for group in groups
        for dtype in dtypes
    ],
)
def test_a_wrong_function_is_incorrect(
    operator: str, group: str, dtype: str, axes: dict[str, Any], function: Callable[..., Any]
) -> None:
    assert not judge(find(operator), group, dtype, function, **axes).ok


def inputs_of(operator: str, group: str, **axes: Any) -> tuple[Any, ...]:
    found = find_operator(operator)
    workload = next(one for one in found.workloads("smoke") if one.group == group)
    from dataclasses import replace

    return found.inputs(replace(workload, axes={**workload.axes, **axes}, dtype="bfloat16"), "cpu", 0)


def test_long_rows_whose_statistics_are_estimates_are_incorrect_in_half_precision() -> None:
    x, weight, *_ = inputs_of("rms_norm", "RMSNorm", seq_len=64, hidden_dim=16384)
    logits, target = inputs_of("cross_entropy", "Forward", tokens=64, vocabulary=32000)
    half_read = (logits[:, ::2].float().exp().sum(-1) * 2).log() - of_target(logits, target)

    for operator, output, inputs in (
        ("rms_norm", x * weight, (x, weight)),
        ("cross_entropy", half_read, (logits, target)),
    ):
        with pytest.raises(WrongResultError, match="beyond the tolerance"):
            compare(output, find_operator(operator), inputs).require_correct()
