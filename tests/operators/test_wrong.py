"""What is called wrong: functions that compute nearly what an operator asks for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from formulas import FP8, activation, cross_entropy, deformable_attention, fp8_quant, rms_norm, spread
from implementations import ALL_SMOKE, find, in_8_bits, judge, judge_on, smoke_workload, without_rest
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.correctness.compare import compare
from kernels_bench_tools.measure.correctness.errors import WrongResultError
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator, tensors_of
from kernels_bench_tools.models.baseline.L1 import FlashAttnPrefill, RotaryEmbedding
from kernels_bench_tools.operators.causal_conv1d import reference as conv1d
from kernels_bench_tools.operators.decoder_layer import layer_with, torch_layer
from kernels_bench_tools.operators.fp8_gemm import torch_linear
from kernels_bench_tools.operators.grouped_gemm import reference as grouped
from kernels_bench_tools.operators.kv_store import torch_store
from kernels_bench_tools.operators.layer_norm import reference as layer_norm
from kernels_bench_tools.operators.linear_cross_entropy import linear_losses, linear_losses_and_gradients
from kernels_bench_tools.operators.llama4_moe import reference as llama4_moe
from kernels_bench_tools.operators.mlp import reference as mlp
from kernels_bench_tools.operators.moe import reference as moe
from kernels_bench_tools.operators.paged_attention import torch_paged
from kernels_bench_tools.operators.recurrent.gated_delta_rule import torch_chunked as gated_delta_rule
from kernels_bench_tools.operators.recurrent.selective_scan import torch_scan as selective_scan
from kernels_bench_tools.operators.recurrent.ssd_scan import torch_scan as ssd_scan
from kernels_bench_tools.operators.rotary import reference as rotary


def three_products(x: Tensor, weight: Tensor) -> Tensor:
    high = [one.bfloat16().float() for one in (x, weight)]
    low = [(one - large).bfloat16().float() for one, large in zip((x, weight), high, strict=True)]
    return high[0] @ high[1].t() + high[0] @ low[1].t() + low[0] @ high[1].t()


def zeros(x: Tensor, *_: Any) -> Tensor:
    return torch.zeros_like(x)


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


def with_gradients(change: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    def function(x: Tensor, weight: Tensor, target: Tensor, _: bool) -> Any:
        loss, of_x, of_weight = linear_losses_and_gradients(x, weight, target)
        return loss, *change(of_x, of_weight, x, target)

    return function


def of_targets_only(of_x: Tensor, of_weight: Tensor, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    counted = (target >= 0)[:, None]
    return of_x, torch.zeros_like(of_weight).index_add(0, target.clamp(min=0), (-x * counted).to(x.dtype))


def of_newer_tokens(of_x: Tensor, of_weight: Tensor, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return of_x, of_weight - of_targets_only(of_x, of_weight, x[:1], target[:1])[1]


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


def overflowing_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = (x.float() - x.float().mean(-1, keepdim=True)).half()
    variance = (centred * centred).float().mean(-1, keepdim=True)
    return (centred.float() * (variance + eps).rsqrt() * weight + bias).half()


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
        "a tenth less decay": with_one(function, decay, lambda x: x * 0.9),
        "keys of the next token": with_one(function, key, lambda x: x.roll(1, axis)),
        "half of the state": last_state(function, lambda x: torch.cat((x[..., :-1], 0 * x[..., -1:]), -1)),
    }


def sampled(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    return lambda value, shapes, starts, locations, weights, maps: deformable_attention(
        value, shapes, starts, *change(locations, weights), maps
    )


WRONG: dict[str, dict[str, Callable[..., Any]]] = {
    "activation: SwiGLU": {
        "GELU for SiLU": swiglu_with(functional.gelu),
        "an exponential that overflows": swiglu_with(lambda gate: gate * gate.exp() / (1 + gate.exp())),
        "what follows whole tiles of 2048 columns": lambda x: without_rest(activation(x), 2048),
    },
    "activation: GELU (tanh)": {
        "the other form": lambda x, form: activation(x, {"tanh": "none", "none": "tanh"}[form]),
        "the sigmoid approximation": lambda x, _: x * torch.sigmoid(1.702 * x),
    },
    "activation: GELU (erf)": {"the other form": lambda x, _: activation(x, "tanh")},
    "causal_conv1d": {
        "a row that begins with the end of the one before": leaking_rows,
    },
    "cross_entropy: Forward": {
        "NaN after a tile of -inf": losses_in_tiles,
        "ignored tokens too": lambda x, target: cross_entropy(x, target.clamp(min=0)),
        "no maximum taken off": lambda x, target: torch.where(
            target < 0, 0.0, x.float().exp().sum(-1).log() - of_target(x, target)
        ),
        "the last column": one_column_less,
        "in the type of the logits": lambda x, target: cross_entropy(x, target).half(),
    },
    "cross_entropy: Forward with gradients": {
        "ignored tokens too": lambda x, target, _: (
            cross_entropy(x, target),
            cross_entropy(x, target.clamp(min=0), True)[1],
        ),
    },
    "linear_cross_entropy: Forward": {
        "ignored tokens too": lambda x, weight, target: linear_losses(x, weight, target.clamp(min=0)),
        "the last class": lambda x, weight, target: one_column_less(functional.linear(x, weight), target),
    },
    "linear_cross_entropy: Forward with gradients": {
        "weights of targets only": with_gradients(of_targets_only),
        "not the first token": with_gradients(of_newer_tokens),
    },
    "decoder_layer": {
        "a copy of the cache": layer_on_a_copy,
        "no rotation": layer_with({RotaryEmbedding: lambda _, positions, *qk: qk}),
        "no earlier tokens": layer_with({FlashAttnPrefill: of_new_tokens_only}),
    },
    "decoder_layer, Qwen2": {
        "no bias": lambda *x: torch_layer(*x[:10], None, *x[11:]),
    },
    "decoder_layer, decoding": {
        "positions from 0": with_inputs(positions=lambda x: x - x.min()),
        "all slots of the blocks": with_inputs(lengths=lambda x: x + 4),
    },
    "embedding": {
        "tokens after whole tiles of 32": lambda weight, ids: without_rest(weight[ids], 32, axis=0),
        "columns after whole tiles of 4096": lambda weight, ids: without_rest(weight[ids], 4096),
        "one rounding off": lambda weight, ids: torch.nextafter(weight[ids], torch.full((), torch.inf)),
    },
    "fp8_gemm: Row-wise": {
        "scales in half precision": lambda x, s, w, t: torch_linear(x, s.half().float(), w, t.half().float()),
        "a column left out": lambda x, s, w, t: torch_linear(
            torch.cat((x[:, :-1], torch.zeros(len(x), 1).to(x.dtype)), 1), s, w, t
        ),
    },
    "fp8_gemm: Blocks of 128": {
        "the first block's scale": lambda x, s, w, t: torch_linear(
            x, s[:, :1].expand_as(s), w, t[:, :1].expand_as(t)
        ),
    },
    "fp8_quant: Blocks of 128x128": {
        "a scale for the tensor": one_scale,
        "scales in half precision": quantized(lambda values, scale: (values, scale.bfloat16().float())),
        "its digits": quantized(
            lambda values, scale: (values.float().to(torch.float8_e5m2).float().to(FP8), scale)
        ),
        "truncated": truncated_fp8,
        "zeros over zero": zero_scales,
    },
    "activation: QuickGELU": {
        "1.7": lambda x, _: x * torch.sigmoid(1.7 * x.float()).to(x.dtype) + 0.01,
    },
    "activation: GeGLU": {
        "erf": lambda x, _: functional.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    },
    "selective_scan: Prefill": scans(selective_scan, 2, 2, 3),
    "gated_delta_rule: Prefill": scans(gated_delta_rule, 1, 3, 1),
    "ssd_scan: Prefill": scans(ssd_scan, 1, 2, 3),
    "deformable_attention": {
        "aligned corners": lambda value, shapes, starts, locations, *rest: deformable_attention(
            value,
            shapes,
            starts,
            (locations * (shapes.flip(1)[:, None] - 1) + 0.5) / shapes.flip(1)[:, None],
            *rest,
        ),
        "borders repeated": sampled(lambda locations, weights: (locations.clamp(0, 1), weights)),
        "the last point left out": sampled(
            lambda locations, weights: (
                locations,
                torch.cat((weights[..., :-1], 0 * weights[..., -1:]), -1),
            )
        ),
    },
    "llama4_moe": {
        "weights on the results": lambda x, logits, w13, w2, *shared: llama4_moe(
            x, logits * 0 + (logits == logits.amax(-1, keepdim=True)) * 100, w13, w2, *shared
        ),
        "a softmax": lambda x, logits, *rest: llama4_moe(
            x, logits.float().softmax(-1).logit().to(x.dtype), *rest
        ),
    },
    "grouped_gemm": {
        "strides ignored": lambda x, *rest: grouped(*without_strides(x), *rest),
    },
    "kv_store": {
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
    "layer_norm": {
        "one eps for all": lambda x, w, b, *eps: layer_norm(x, w, b),
        "eps 1e-6 always": lambda x, w, b, *eps: layer_norm(x, w, b, 1e-6),
        "a column less in the variance": lambda x, w, b, *eps: (
            (layer_norm(x, w, b, *eps) - b) * (1 - 1 / x.shape[-1]) ** 0.5 + b
        ),
        "what follows whole tiles of 2048 columns": lambda *given: without_rest(layer_norm(*given), 2048),
    },
    "layer_norm, float16": {"squares that overflow": overflowing_norm},
    "matmul: Linear": {
        "three products in bfloat16": three_products,
    },
    "matmul: Linear with bias": {
        **{
            f"what follows whole tiles of {rows} rows": lambda x, weight, bias, rows=rows: without_rest(
                x @ weight.t() + bias, rows, axis=0
            )
            for rows in (128, 1024)
        },
        "rounded to FP8": lambda x, weight, bias: x.to(FP8).to(x.dtype) @ weight.t() + bias,
        "strides ignored": lambda x, weight, bias: x @ without_strides(weight)[0].t() + bias,
    },
    "mlp": {
        "tokens after whole tiles of 128": lambda *given: without_rest(mlp(*given), 128, axis=0),
        "an exponential that overflows": overflowing_mlp,
        "strides ignored": lambda *given: mlp(*without_strides(*given)),
        "the last weights in 8 bits": lambda x, gate_up, down: mlp(
            x.float(), gate_up.float(), in_8_bits(down)
        ).to(x.dtype),
    },
    "moe": {
        "one expert less": lambda *given: moe(*given[:4], max(given[4] - 1, 1)),
        "weights of the next token": lambda x, logits, *rest: moe(
            x, logits * (logits.roll(1, 0).std(-1) / logits.std(-1))[:, None], *rest
        ),
        "an exponential that overflows": overflowing_moe,
        "weights in 8 bits, in groups of 8": moe_in_8_bits,
    },
    "paged_attention": {
        "the last token forgotten": lambda q, k, v, tables, lengths: torch_paged(
            q, k, v, tables, (lengths - 1).clamp(min=1)
        ),
        "key heads in turn": lambda q, k, v, tables, lengths: torch_paged(
            q.unflatten(1, (-1, k.shape[2])).transpose(1, 2).flatten(1, 2), k, v, tables, lengths
        ),
    },
    "rms_norm: RMSNorm": {
        **{
            f"eps {eps} always": lambda x, weight, *_, eps=eps: rms_norm(x, weight, eps=eps)
            for eps in (1e-6, 1e-5, 0.0)
        },
        "a column less in the mean": lambda x, *rest: rms_norm(x, *rest) * (1 - 1 / x.shape[-1]) ** 0.5,
        "what follows whole tiles of 2048 columns": lambda *given: without_rest(rms_norm(*given), 2048),
    },
    "rms_norm: RMSNorm with residual": {
        "the old residual": lambda x, weight, residual, eps: (
            rms_norm(x + residual, weight, eps=eps),
            residual.clone(),
        ),
        "one eps for all": lambda x, weight, residual, _: rms_norm(x, weight, residual, 1e-6),
        "a residual with the strides of x": lambda x, weight, residual, eps: rms_norm(
            x, weight, residual.as_strided(x.shape, x.stride()), eps
        ),
    },
    "rotary": {
        "interleaved": interleaved,
        "backwards": lambda q, k, cos, sin: rotary(q, k, cos, -sin),
    },
}


AXES: dict[str, dict[str, Any]] = {
    "decoder_layer, Qwen2": {"kind": "qwen2"},
    "decoder_layer, decoding": {"kind": "qwen3", "residual": False, "sequences": 3, "tokens": 1},
    "fp8_quant: Blocks of 128x128": {"tokens": 130, "hidden_dim": 520},
    "llama4_moe": {"tokens": 24},
}
"""Changed axes of the smoke workload."""
DTYPES = {
    "deformable_attention": "float32",
    "layer_norm, float16": "float16",
    "matmul: Linear": "float32",
    "fp8_gemm: Row-wise": "float8_e4m3fn",
    "fp8_gemm: Blocks of 128": "float8_e4m3fn",
}
"""All others are tried in bfloat16, where most is tolerated."""


@pytest.mark.parametrize(
    ("of", "what"), [(of, what) for of, functions in WRONG.items() for what in functions]
)
def test_a_wrong_function_is_incorrect(of: str, what: str) -> None:
    operator, _, group = of.partition(",")[0].partition(": ")

    found = judge(find(operator), group, DTYPES.get(of, "bfloat16"), WRONG[of][what], **AXES.get(of, {}))

    assert not found.ok


def larger_at_the_end(output: Tensor) -> Tensor:
    last = (-1,) * output.dim()
    output[last] = (2 * output[last].float().abs() + 1).to(output.dtype)
    return output


def without_the_last_row(output: Tensor) -> Tensor:
    output[-1:] = torch.zeros_like(output[-1:])
    return output


def unread(value: Any) -> Any:
    """Return an input as who does not read it, or reads it elsewhere, may take it to be."""
    return torch.zeros_like(value) if value.is_floating_point() else value.flatten().roll(1).view(value.shape)


NEEDLESS = {
    ("deformable_attention", "", ""): (1, 2),  # another one has the sizes of the maps, too
    ("embedding", "", "bwd"): (0,),
    ("layer_norm", "", "bwd"): (2,),
    ("matmul", "Linear with bias", "bwd"): (2,),
    ("rotary", "", "bwd"): (0, 1),
}
"""Positions of inputs that need not be read, by operator, group and mode."""


@pytest.mark.parametrize("change", [torch.zeros_like, larger_at_the_end, without_the_last_row])
@pytest.mark.parametrize(("operator", "workload"), ALL_SMOKE)
def test_an_output_that_is_left_out_in_part_is_incorrect(
    operator: Operator, workload: Workload, change: Callable[[Tensor], Tensor]
) -> None:
    form = operator.for_workload(workload)
    for number in range(len(form.outputs)):
        changes = []

        def wrong(*inputs: Any, number: int = number, changes: list[bool] = changes) -> Any:
            outputs = list(tensors_of(form.baseline(*inputs)))
            changed = change(outputs[number].clone())
            changes.append(not torch.equal(changed, outputs[number]))
            outputs[number] = changed
            return tuple(outputs) if len(outputs) > 1 else changed

        assert judge_on(workload, operator, wrong).ok is not any(changes), number


@pytest.mark.parametrize(("operator", "workload"), ALL_SMOKE)
def test_an_input_that_is_not_read_makes_the_result_incorrect(operator: Operator, workload: Workload) -> None:
    form = operator.for_workload(workload)
    for number, value in enumerate(form.inputs(workload, "cpu", 0)):
        if isinstance(value, Tensor):
            found = judge_on(workload, operator, with_one(form.baseline, number, unread))
            needless = number in NEEDLESS.get((operator.name, workload.group, workload.mode), ())
            assert found.ok is (needless or torch.equal(unread(value), value)), (number, found.reason)


def inputs_of(operator: str, group: str, **axes: Any) -> tuple[Any, ...]:
    found = find_operator(operator)
    return found.inputs(smoke_workload(found, group, "bfloat16", **axes), "cpu", 0)


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
