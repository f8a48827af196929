"""What is right: torch's implementations, and formulas that are written out here, in every type and edge case."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from formulas import (
    FP8,
    activation,
    cross_entropy,
    deformable_attention,
    embedding,
    fp8_quant,
    rms_norm,
)
from implementations import assert_correct, find, function_of, judge, judge_on, smoke_workload
from torch import Tensor
from torch.func import functional_call

from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.models.baseline.L2 import FusedMoE, LlamaMLP
from kernels_bench_tools.records.record import Flag

ALL, TWO, SINGLE = ("float32", "bfloat16", "float16"), ("float32", "bfloat16"), ("float32",)
ACTIVATION = ("SwiGLU", "GELU (tanh)", "GELU (erf)")
OTHERS = ("SiLU", "QuickGELU", "GeGLU")
SCANS = ("Prefill", "Step")
CROSS_ENTROPY = ("Forward", "Forward with gradients")
FP8_QUANT = ("Row-wise", "Blocks of 1x128", "Blocks of 128x128")
RMS_NORM = ("RMSNorm", "RMSNorm with residual")

# Operator; notebook of the implementation, or a formula; groups; types; axes of the smoke workload that are changed.
CASES: list[tuple[str, str | Callable[..., Any], tuple[str, ...], tuple[str, ...], dict[str, Any]]] = [
    ("activation", activation, (*ACTIVATION, *OTHERS), ALL, {}),
    ("activation", "torch_activations", OTHERS, ALL, {}),
    ("activation", "torch_compiled_activations", OTHERS, SINGLE, {}),
    ("activation", "torch_swiglu", ACTIVATION[:1], ALL, {}),
    ("activation", "torch_gelu", ACTIVATION[1:], ALL, {}),
    ("activation", "torch_compiled_swiglu", ACTIVATION[:1], SINGLE, {}),
    ("activation", "torch_compiled_gelu", ACTIVATION[1:2], SINGLE, {}),
    *(
        ("causal_conv1d", "torch_causal_conv1d", ("",), ALL, axes)
        for axes in ({}, {"seq_len": 1}, {"width": 2, "activation": "none"})
    ),
    ("causal_conv1d", "torch_compiled_causal_conv1d", ("",), SINGLE, {}),
    *(
        ("causal_lm", name, ("",), ("bfloat16",), axes)
        for name in ("torch_model", "torch_compiled_model")
        for axes in ({}, {"kind": "qwen3", "sequences": 3, "tokens": 1})
    ),
    ("cross_entropy", cross_entropy, CROSS_ENTROPY, ALL, {}),
    ("cross_entropy", "torch_cross_entropy", CROSS_ENTROPY, ALL, {}),
    ("cross_entropy", "torch_eager_cross_entropy", CROSS_ENTROPY, ALL, {}),
    ("cross_entropy", "torch_compiled_cross_entropy", CROSS_ENTROPY, SINGLE, {}),
    # The second is a formula of its own, without the modules of the models. A layer of Qwen2 has a bias.
    *(
        ("decoder_layer", name, ("",), TWO, axes)
        for name in ("torch_layer", "torch_compiled_layer")
        for axes in ({}, {"kind": "qwen3", "residual": False, "sequences": 3, "tokens": 1}, {"kind": "qwen2"})
    ),
    *(
        ("deformable_attention", name, ("",), SINGLE, {})
        for name in (
            deformable_attention,
            "torch_deformable_attention",
            "torch_compiled_deformable_attention",
        )
    ),
    ("embedding", embedding, ("",), ALL, {}),
    ("embedding", "torch_embedding", ("",), ALL, {}),
    ("embedding", "torch_compiled_embedding", ("",), SINGLE, {}),
    ("fp8_gemm", "torch_fp8_gemm", ("Row-wise", "Blocks of 128"), ("float8_e4m3fn",), {}),
    ("fp8_gemm", "torch_compiled_fp8_gemm", ("Row-wise", "Blocks of 128"), ("float8_e4m3fn",), {}),
    ("fp8_gemm", "torch_scaled_mm", ("Row-wise",), ("float8_e4m3fn",), {}),
    *(
        ("fp8_quant", function, FP8_QUANT, TWO, {"tokens": 130, "hidden_dim": 520})
        for function in (fp8_quant, "torch_fp8_quant", "torch_compiled_fp8_quant")
    ),
    ("gated_delta_rule", "torch_gated_delta_rule", SCANS, TWO, {}),
    ("gated_delta_rule", "torch_compiled_gated_delta_rule", SCANS[1:], SINGLE, {}),
    ("grouped_gemm", "torch_grouped_mm", ("",), TWO, {}),
    ("grouped_gemm", "torch_loop", ("",), TWO, {}),
    ("kv_store", "torch_index_copy", ("",), TWO, {}),
    ("kv_store", "torch_index_put", ("",), TWO, {}),
    ("layer_norm", "torch_layer_norm", ("",), ALL, {}),
    *(
        ("llama4_moe", name, ("",), TWO, {"routing": routing})
        for name in ("torch_llama4_moe", "torch_all_experts_llama4_moe")
        for routing in ("uniform", "skewed")
    ),
    ("matmul", "torch_matmul", ("Linear", "Linear with bias"), ALL, {}),
    ("mlp", "torch_mlp", ("",), TWO, {}),
    ("moe", "torch_moe", ("",), TWO, {}),
    ("moe", "torch_compiled_moe", ("",), TWO, {}),
    ("paged_attention", "torch_gather", ("",), ALL, {}),
    *(
        ("rms_norm", function, RMS_NORM, ALL, {})
        for function in (rms_norm, "torch_rms_norm", "torch_eager_rms_norm", "torch_compiled_rms_norm")
    ),
    ("rotary", "torch_rotary", ("",), ALL, {}),
    ("rotary", "torch_rotary", ("",), ALL, {"seq_len": 1, "heads": 32, "kv_heads": 8, "head_dim": 128}),
    ("rotary", "torch_compiled_rotary", ("",), SINGLE, {}),
    ("selective_scan", "torch_selective_scan", SCANS, TWO, {}),
    ("selective_scan", "torch_compiled_selective_scan", SCANS, SINGLE, {}),
    ("ssd_scan", "torch_ssd_scan", SCANS, TWO, {}),
    ("ssd_scan", "torch_compiled_ssd_scan", SCANS[1:], SINGLE, {}),
]
REFUSED = {"torch_index_copy": ["heads first in memory", "a block's keys and values side by side"]}
"""Edge cases that an implementation refuses to compute; all others are computed."""


@pytest.mark.parametrize(
    ("operator", "function", "group", "dtype", "axes"),
    [
        pytest.param(
            operator,
            function,
            group,
            dtype,
            axes,
            id="-".join((operator, getattr(function, "__name__", function), group, dtype, *axes)),
        )
        for operator, function, groups, dtypes, axes in CASES
        for group in groups
        for dtype in dtypes
    ],
)
def test_a_right_implementation_is_correct(
    operator: str, function: Any, group: str, dtype: str, axes: dict[str, Any]
) -> None:
    called = function_of(operator, function) if isinstance(function, str) else function

    verdict = judge(find(operator), group, dtype, called, **axes)

    # Log-probabilities that torch rounds to half precision.
    rounded = function == "torch_cross_entropy" and dtype != "float32"
    assert verdict.ok, verdict.reason
    assert verdict.flags == ([Flag.PRECISION] if rounded else [])
    assert verdict.corr.get("refused") == REFUSED.get(str(function))


def test_the_blocks_of_the_models_compute_what_the_operators_compute() -> None:
    def inputs(name: str) -> Any:
        operator = find_operator(name)
        return operator.inputs(operator.workloads("smoke")[0], "cpu", 0)

    x, gate_up, down = inputs("mlp")
    weights = {"gate_up_proj.weight": gate_up, "down_proj.weight": down}
    found = functional_call(LlamaMLP(64, 96), weights, (x,))
    torch.testing.assert_close(found, find_operator("mlp").reference(x, gate_up, down))
    x, logits, w13, w2, top_k = inputs("moe")
    found = functional_call(FusedMoE(6, top_k, 64, 48), {"w13_weight": w13, "w2_weight": w2}, (x, logits))
    torch.testing.assert_close(found, find_operator("moe").reference(x, logits, w13, w2, top_k))


@pytest.mark.parametrize("name", ["torch_", "torch_compiled_"])
@pytest.mark.parametrize("layout", ["gated", "gate_first"])
@pytest.mark.parametrize("dtype", TWO)
def test_a_norm_with_a_gate_is_correct(name: str, layout: str, dtype: str) -> None:
    operator = find_operator("rms_norm").adapted(layout=layout)
    workload = smoke_workload(operator, f"RMSNorm, {layout.replace('_', ' ')}", dtype)

    assert_correct(judge_on(workload, operator, function_of("rms_norm", f"{name}{layout}_rms_norm")))


@pytest.mark.parametrize("name", ["selective_scan", "gated_delta_rule", "ssd_scan"])
def test_a_scan_is_as_many_steps(name: str) -> None:
    operator = find_operator(name)
    workload = smoke_workload(operator, "Prefill")
    *inputs, state = (
        one.double() if isinstance(one, Tensor) else one for one in operator.inputs(workload, "cpu", 0)
    )
    axis = 2 if name == "selective_scan" else 1
    of_tokens = [isinstance(one, Tensor) and one.dim() > 2 for one in inputs]
    expected, last = operator.reference(*inputs, state)

    outputs = []
    for token in range(70):
        given = [
            one.narrow(axis, token, 1) if along else one for one, along in zip(inputs, of_tokens, strict=True)
        ]
        out, state = function_of(name, f"torch_{name}")(*(one.float() for one in given), state)
        outputs.append(out)

    torch.testing.assert_close(torch.cat(outputs, axis).double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state.double(), last, rtol=1e-5, atol=1e-6)


def test_the_reference_of_a_convolution_is_the_formula() -> None:
    reference = find_operator("causal_conv1d").reference
    x, weight, bias = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 100.0]]), torch.tensor([0.5])

    assert reference(x, weight, bias, None).tolist() == [[100.5, 210.5, 320.5]]
    assert reference(-x, weight / 100, bias, "silu")[0, 0].item() == pytest.approx(
        -0.5 / (1 + 2.718281828**0.5)
    )


def test_a_rotation_keeps_the_length_of_every_pair() -> None:
    operator = find_operator("rotary")
    q, k, cos, sin = (value.double() for value in operator.inputs(operator.workloads("smoke")[0], "cpu", 0))
    angle = torch.atan2(sin, cos)

    for x, rotated in zip((q, k), operator.reference(q, k, angle.cos(), angle.sin()), strict=True):
        before, after = torch.complex(*x.chunk(2, -1)), torch.complex(*rotated.chunk(2, -1))
        assert torch.allclose(after, before * torch.exp(1j * angle)[:, None], rtol=1e-12, atol=1e-12)


def test_both_neighbours_of_a_tie_are_correct_in_fp8() -> None:
    x = torch.tensor([[448.0, 17.0, -17.0, 19.0]])  # 17 and 19 lie between 16, 18 and 20
    operator = replace(
        find_operator("fp8_quant"),
        inputs=lambda *_: (x, 1, 4),
        edge_cases=lambda *_: (),
        smaller=lambda one: one,
    )
    for values in ([448, 16, -16, 20], [448, 18, -18, 18]):
        found = torch.tensor([values], dtype=torch.float32).to(FP8), torch.ones(1, 1)
        called = lambda *_, found=found: tuple(map(torch.clone, found))  # noqa: E731
        assert check(operator, operator.workloads("smoke")[0], called, (x, 1, 4)).ok


def test_gradients_may_overwrite_the_logits_and_caches_be_written_if_that_is_declared() -> None:
    def in_place(logits: Tensor, target: Tensor, gradients: bool = False) -> Any:
        loss, gradient = cross_entropy(logits, target, True)
        logits.copy_(gradient)
        return (loss, logits) if gradients else loss

    for name, group, function in (
        ("cross_entropy", CROSS_ENTROPY[1], in_place),
        ("kv_store", "", function_of("kv_store", "torch_index_put")),
    ):
        operator = find_operator(name)
        assert_correct(judge(operator.adapted(in_place=True), group, "float32", function))
        assert judge(operator, group, "float32", function).flags == [Flag.INPUT_MUTATED]
