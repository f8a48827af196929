"""What is right: torch's implementations, and formulas that are written out here, in every type and edge case."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import formulas
import pytest
import torch
from implementations import (
    ALL_SMOKE,
    ROOT,
    assert_correct,
    find,
    function_of,
    judge,
    judge_on,
    options_of,
    run_cell,
    smoke_workload,
)
from torch import Tensor
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.correctness.compare import compare
from kernels_bench_tools.measure.operator import (
    Operator,
    Workload,
    built_in_modules,
    find_operator,
    one_slice,
    tensors_of,
)
from kernels_bench_tools.models.baseline.L2 import FusedMoE, LlamaMLP
from kernels_bench_tools.records.record import Flag

NOTEBOOKS = [
    path
    for path in sorted(ROOT.glob("*/impls/torch_*.md"))
    if path.parts[-3] != "transformers_models" and path.stem in run_cell(path.parts[-3], path.stem)
]
DTYPES = {
    "causal_lm": ("bfloat16",),
    "deformable_attention": ("float32",),
    "fp8_gemm": ("float8_e4m3fn",),
}
"""Of operators with notebooks that do not compute in both float32 and bfloat16."""
AXES: dict[str, list[dict[str, Any]]] = {
    "causal_conv1d": [{"seq_len": 1}, {"width": 2, "activation": "none"}],
    "decoder_layer": [{"kind": "qwen2"}],
    "fp8_quant": [{"tokens": 130, "hidden_dim": 520}],
    "llama4_moe": [{"routing": "skewed"}],
    "rotary": [{"seq_len": 1, "heads": 32, "kv_heads": 8, "head_dim": 128}],
}
"""Changes of the smoke workloads that are tried, too."""
REFUSED = {"torch_index_copy": ["heads first in memory", "a block's keys and values side by side"]}
"""Edge cases that an implementation refuses to compute; all others are computed."""
FORMULAS = "activation", "cross_entropy", "deformable_attention", "embedding", "fp8_quant", "rms_norm"


def variants(operator: Operator, only: Any = None) -> list[Workload]:
    """Return the smoke workloads, and each with changed axes, in each type."""
    return [
        replace(workload, axes=workload.axes | axes, dtype=dtype)
        for workload in operator.workloads("smoke", only)
        for axes in ({}, *AXES.get(operator.name, ()))
        for dtype in DTYPES.get(operator.name, ("float32", "bfloat16"))
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_what_a_notebook_calls_of_torch_is_correct_on_what_it_measures(path: Path) -> None:
    options = options_of(path.parts[-3], path.stem)
    only = options.pop("only", None)
    operator, function = (
        find_operator(path.parts[-3]).adapted(**options),
        function_of(path.parts[-3], path.stem),
    )
    for workload in variants(operator, only):
        if (path.stem, workload.group) == ("torch_scaled_mm", "Blocks of 128"):
            continue  # for CUDA only
        verdict = judge_on(workload, operator, function)

        # Log-probabilities that torch rounds to half precision.
        rounded = path.stem == "torch_cross_entropy" and workload.dtype != "float32"
        assert verdict.ok, verdict.reason
        # Sums of a scan lose digits on some of the shapes that are drawn.
        assert verdict.flags in ([[Flag.PRECISION]] if rounded else [[], [Flag.PRECISION]])
        assert verdict.corr.get("refused") == REFUSED.get(path.stem)


@pytest.mark.parametrize("group", ["Forward", "Forward with gradients"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_torch_rounds_to_half_precision_is_correct_for_few_classes(group: str, dtype: str) -> None:
    operator, function = find_operator("cross_entropy"), function_of("cross_entropy", "torch_cross_entropy")
    smoke = smoke_workload(operator, group)
    for vocabulary in (2, 6, 8, 33):
        for seed in range(40):
            axes = smoke.axes | {"vocabulary": vocabulary}
            inputs = operator.inputs(replace(smoke, axes=axes, dtype=dtype), "cpu", seed)
            compare(function(*inputs), operator.for_workload(smoke), inputs).require_correct(mean=False)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_that_is_written_out_is_correct(name: str) -> None:
    operator = find_operator(name)
    for workload in variants(operator):
        assert_correct(judge_on(workload, operator, getattr(formulas, name)))


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


class RoundedProducts(TorchFunctionMode):
    def __init__(self, rounded: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rounded = rounded

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.matmul, torch.matmul):
            args = tuple(map(self.rounded, args))
        return function(*args, **(kwargs or {}))


def test_a_scan_may_round_what_it_multiplies_to_half_precision_and_not_to_int8() -> None:
    operator = find_operator("ssd_scan")
    axes = dict(zip(operator.axes, ("prefill", 1, 512, 32, 64, 8, 128), strict=True))
    inputs = operator.inputs(Workload(name="w", axes=axes, dtype="bfloat16", group="Prefill"), "cpu", 2)

    def error(rounded: Callable[[Tensor], Tensor]) -> float:
        with RoundedProducts(rounded):
            outputs = operator.baseline(*inputs)
        return compare(outputs, operator, inputs).worst.found.ratio

    def in_int8(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round().mul(scale).nan_to_num()

    assert error(lambda x: x.bfloat16().float()) < 1
    assert error(in_int8) > 3


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
        found = torch.tensor([values], dtype=torch.float32).to(formulas.FP8), torch.ones(1, 1)
        called = lambda *_, found=found: tuple(map(torch.clone, found))  # noqa: E731
        assert check(operator, operator.workloads("smoke")[0], called, (x, 1, 4)).ok


def test_gradients_may_overwrite_the_logits_and_caches_be_written_if_that_is_declared() -> None:
    def in_place(logits: Tensor, target: Tensor, gradients: bool = False) -> Any:
        loss, gradient = formulas.cross_entropy(logits, target, True)
        logits.copy_(gradient)
        return (loss, logits) if gradients else loss

    for name, group, function in (
        ("cross_entropy", "Forward with gradients", in_place),
        ("kv_store", "", function_of("kv_store", "torch_index_put")),
    ):
        operator = find_operator(name)
        assert_correct(judge(operator.adapted(in_place=True), group, "float32", function))
        assert judge(operator, group, "float32", function).flags == [Flag.INPUT_MUTATED]


ATTENTION = find("flash_attn")
SHARED_HEADS = [
    (ATTENTION, smoke_workload(ATTENTION, seq_len=queries, kv_len=keys, heads=8, kv_heads=4, causal=True))
    for queries, keys in ((11, 13), (3, 5))
]
"""Slices of queries, and of several heads of keys."""


@pytest.mark.parametrize(("operator", "workload"), [*ALL_SMOKE, *SHARED_HEADS])
def test_slices_cover_the_outputs(
    monkeypatch: pytest.MonkeyPatch, operator: Operator, workload: Workload
) -> None:
    form = operator.for_workload(workload)
    if operator.name == "causal_lm" or form.slices is one_slice:
        return  # the slices of the first are tested with it
    module = sys.modules[built_in_modules()[operator.name]]
    monkeypatch.setattr(helpers, "SLICE_ELEMENTS", 96)
    for limit in [name for name in vars(module) if name.endswith("_AT_ONCE")]:
        monkeypatch.setattr(module, limit, 96)
    single = workload if operator.name == "fp8_gemm" else replace(workload, dtype="float32")
    # Values in FP8 are compared in float32, which torch can add.
    inputs = [
        one.float() if isinstance(one, Tensor) and one.is_floating_point() else one
        for one in form.inputs(single, "cpu", 0)
    ]

    whole = tensors_of(form.reference(*inputs))
    joined = [torch.full_like(one, float("nan")) for one in whole]
    pieces = list(form.slices(tuple(inputs)))
    for index, piece in pieces:
        for one, part in zip(joined, tensors_of(form.reference(*piece)), strict=True):
            one[index] = part

    torch.testing.assert_close(joined, list(whole))
    assert len(pieces) > (workload.group != "Blocks of 128x128")
