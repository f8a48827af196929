"""Bytes and operations of a call are counted from its tensors."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from formulas import fp8_quant
from implementations import counted, find, judge_on, smoke_workload

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.operators.fp8_gemm import torch_linear

NUMBERS, LOGITS, PAIRS = 2 * 32 * 256, 8 * 1000, 3 + 4 + 5
LAYER, VECTORS = 128 * 64 + 64 * 64 + 3 * 96 * 64, 2 * 64 + 2 * 16
"""Of a layer of the smoke set: numbers in its matrices, and in its norms."""
MODEL = 2 * LAYER + 256 * 64
INDICES = 8 * (3 + 3 + 9 + 3)
EARLIER, TOKEN = 3 * 19, 2 * 2 * 16
"""Tokens in the cache, and numbers of each."""
FP8 = (16 * 256 + 384 * 256, 2 * 16 * 384, 2 * 16 * 256 * 384)
QUANTIZED = 130 * 520
DECODE = {"kind": "qwen3", "sequences": 3, "tokens": 1}
BLOCKS = {"tokens": 130, "hidden_dim": 520}
# Operator, group, type, changed axes; bytes read, bytes written, operations.
COUNTS: list[tuple[str, str, str, dict[str, Any], int, int, int]] = [
    ("activation", "SwiGLU", "bfloat16", {}, 16 * 512 * 2, 16 * 256 * 2, 16 * 256 * 5),
    ("activation", "GELU (tanh)", "bfloat16", {}, 16 * 256 * 2, 16 * 256 * 2, 16 * 256 * 9),
    ("activation", "GeGLU", "bfloat16", {}, 16 * 512 * 2, 16 * 256 * 2, 16 * 256 * 10),
    ("causal_conv1d", "", "float32", {}, (512 + 8 * 5) * 4, 512 * 4, 512 * (8 + 4)),
    ("causal_conv1d", "", "float32", {"width": 2, "activation": "none"}, (512 + 24) * 4, 512 * 4, 512 * 4),
    (
        *("causal_lm", "", "bfloat16", DECODE),
        2 * (EARLIER * 2 * TOKEN + MODEL + 2 * VECTORS + 64 + 3 * 64 + 16) + INDICES + 8 * 3,
        2 * (3 * 256 + 3 * 2 * TOKEN),
        2 * 3 * MODEL + 4 * 3 * 20 * 64 * 2,
    ),
    # Logits once, and targets of 8 bytes.
    ("cross_entropy", "Forward", "bfloat16", {}, LOGITS * 2 + 64, 8 * 4, LOGITS * 4),
    (
        "cross_entropy",
        "Forward with gradients",
        "bfloat16",
        {},
        LOGITS * 2 + 64,
        8 * 4 + LOGITS * 2,
        LOGITS * 7,
    ),
    (
        *("decoder_layer", "", "bfloat16", {**DECODE, "residual": False}),
        2 * (3 * 64 + EARLIER * TOKEN + 16 + LAYER + VECTORS) + INDICES,
        2 * (2 * 3 * 64 + 3 * TOKEN),
        2 * 3 * LAYER + 4 * 3 * 20 * 64,
    ),
    # The last of three queries sees all five keys.
    (
        *("flash_attn", "", "bfloat16"),
        {"batch": 1, "seq_len": 3, "kv_len": 5, "heads": 4, "kv_heads": 2, "head_dim": 64, "causal": True},
        (3 * 4 + 2 * 5 * 2) * 64 * 2,
        3 * 4 * 64 * 2,
        4 * PAIRS * 4 * 64,
    ),
    # Two maps of 8 x 10 and 4 x 5, with two images, 20 queries, two heads and four points.
    (
        *("deformable_attention", "", "float32", {}),
        4 * (2 * 100 * 32 + 2 * 20 * 2 * 2 * 4 * 3) + 2 * 2 * 8 + 2 * 8,
        4 * 2 * 20 * 32,
        2 * 20 * 2 * 2 * 4 * 16 * 8,
    ),
    ("fp8_gemm", "Row-wise", "", {}, FP8[0] + 4 * (16 + 384), FP8[1], FP8[2]),
    ("fp8_gemm", "Blocks of 128", "", {}, FP8[0] + 4 * (16 * 2 + 3 * 2), FP8[1], FP8[2]),
    # Of one byte, when they are written.
    (
        "fp8_quant",
        "Blocks of 128x128",
        "bfloat16",
        BLOCKS,
        QUANTIZED * 2,
        QUANTIZED + 2 * 5 * 4,
        QUANTIZED * 4,
    ),
    # One token of two sequences, whose states of two heads are read and written.
    (
        *("gated_delta_rule", "Step", "bfloat16", {}),
        2 * (4 * 3 * 32 + 4) + 4 * (4 + 4 * 32 * 32),
        2 * 4 * 32 + 4 * 4 * 32 * 32,
        7 * 4 * 32 * 32,
    ),
    ("grouped_gemm", "", "bfloat16", {}, 2 * (24 * 128 + 3 * 64 * 128) + 12, 2 * 24 * 64, 2 * 24 * 128 * 64),
    # Only weights of experts with rows.
    (
        *("grouped_gemm", "", "float32"),
        {"rows": 2, "experts": 8, "in_features": 16, "out_features": 4, "skewed": False},
        4 * (2 * 16 + 2 * 4 * 16) + 4 * 8,
        4 * 2 * 4,
        2 * 2 * 16 * 4,
    ),
    # Only slots that are written.
    ("kv_store", "", "float32", {}, 2 * 12 * 2 * 32 * 4 + 12 * 8, 2 * 12 * 2 * 32 * 4, 0),
    ("layer_norm", "", "bfloat16", {}, (NUMBERS + 2 * 256) * 2, NUMBERS * 2, NUMBERS * 7),
    (
        *("matmul", "Linear with bias", "bfloat16", {}),
        2 * (16 * 128 + 192 * 128 + 192),
        2 * 16 * 192,
        2 * 16 * 128 * 192,
    ),
    ("mlp", "", "bfloat16", {}, 2 * (16 * 64 + 3 * 64 * 96), 2 * 16 * 64, 6 * 16 * 64 * 96),
    ("rms_norm", "RMSNorm", "bfloat16", {}, (NUMBERS + 256) * 2, NUMBERS * 2, NUMBERS * 4),
    ("rms_norm", "RMSNorm with residual", "bfloat16", {}, (NUMBERS * 2 + 256) * 2, NUMBERS * 4, NUMBERS * 5),
    (
        *("rotary", "", "bfloat16", {"batch": 2, "seq_len": 3, "heads": 32, "kv_heads": 8, "head_dim": 128}),
        (2 * 3 * 40 * 128 + 2 * 3 * 64) * 2,
        2 * 3 * 40 * 128 * 2,
        2 * 3 * 40 * 64 * 6,
    ),
    # A sequence has no state at its start.
    (
        *("selective_scan", "Prefill", "bfloat16", {}),
        2 * 2 * 70 * (3 * 8 + 2 * 16) + 4 * 8 * (16 + 2),
        2 * 2 * 8 * 70 + 4 * 2 * 8 * 16,
        2 * 8 * 70 * (7 * 16 + 10),
    ),
    (
        *("ssd_scan", "Step", "bfloat16", {}),
        2 * 2 * (4 * 16 + 4 + 2 * 2 * 32) + 4 * (3 * 4 + 2 * 4 * 16 * 32),
        2 * 2 * 4 * 16 + 4 * 2 * 4 * 16 * 32,
        2 * 4 * 16 * (5 * 32 + 3),
    ),
]
STORED = {
    "fp8_gemm": torch_linear,
    "fp8_quant": fp8_quant,
    **{name: find_operator(name).baseline for name in ("gated_delta_rule", "selective_scan", "ssd_scan")},
}
"""What returns results in the types that they are stored in, which the references do not."""


@pytest.mark.parametrize(
    ("operator", "group", "dtype", "axes", "read", "written", "flops"),
    COUNTS,
    ids=["-".join((*one[:2], *one[3])) for one in COUNTS],
)
def test_a_call_is_counted(
    operator: str, group: str, dtype: str, axes: dict[str, Any], read: int, written: int, flops: int
) -> None:
    found = find(operator)

    function = STORED.get(operator)
    assert counted(found, smoke_workload(found, group, dtype, **axes), function) == (read, written, flops)


def test_only_weights_of_chosen_experts_are_counted() -> None:
    operator = find_operator("moe")
    x, logits, *rest = operator.inputs(smoke_workload(operator, "", "bfloat16"), "cpu", 0)
    inputs = x, logits[:1].expand_as(logits).contiguous(), *rest
    work = operator.work(inputs, operator.reference(*inputs))

    assert work.bytes_read == 2 * (12 * 64 + 12 * 6 + 2 * 3 * 48 * 64)
    assert (work.bytes_written, work.flops) == (2 * 12 * 64, 2 * 12 * 2 * 3 * 48 * 64)


def test_only_tokens_of_the_sequences_are_counted() -> None:
    operator = find_operator("paged_attention")
    query, keys, values, tables, _ = operator.inputs(smoke_workload(operator), "cpu", 0)
    work = operator.work((query, keys, values, tables, torch.tensor([40, 9, 1])), query)

    of_query, token = 3 * 4 * 32 * 4, 2 * 32 * 4
    assert work.bytes_read == of_query + 2 * 50 * token + (5 + 2 + 1) * 8 + 3 * 8
    assert (work.bytes_written, work.flops) == (of_query, 4 * 4 * 32 * 50)


def test_only_rows_of_an_embedding_that_are_selected_are_read() -> None:
    operator = find_operator("embedding")
    weight, _ = operator.inputs(smoke_workload(operator), "cpu", 0)
    ids = torch.tensor([3, 3, 7])
    gradient = weight[ids]

    forward = operator.work((weight, ids), gradient)
    backward = in_mode(operator, "bwd").work((weight, ids, gradient), weight)
    both = in_mode(operator, "fwd_bwd").work((weight, ids, gradient), (gradient, weight))

    row = 64 * 4
    assert (forward.bytes_read, forward.bytes_written) == (3 * 8 + 2 * row, 3 * row)
    assert (backward.bytes_read, backward.bytes_written) == (3 * 8 + 3 * row, 100 * row)
    assert both.bytes_moved == forward.bytes_moved + backward.bytes_moved - 3 * 8


def test_a_backward_pass_of_rotary_reads_gradients_and_tables_only() -> None:
    operator = find_operator("rotary")
    backward = in_mode(operator, "bwd")
    inputs = backward.inputs(smoke_workload(operator), "cpu", 0)
    q, k, cos, sin, *_ = inputs

    work = backward.work(inputs, (q, k))

    assert work.bytes_written == q.nbytes + k.nbytes
    assert work.bytes_read == q.nbytes + k.nbytes + cos.nbytes + sin.nbytes
    both = in_mode(operator, "fwd_bwd").work(inputs, (q, k))
    assert both.bytes_read == work.bytes_read + q.nbytes + k.nbytes


@pytest.mark.parametrize("name", ["embedding", "flash_attn", "matmul", "rms_norm"])
def test_gradients_of_the_formula_are_correct_and_of_a_copy_are_not(name: str) -> None:
    operator, mode = find_operator(name), "fwd_bwd"
    backward = in_mode(operator, mode)
    for smoke in backward.workloads("smoke"):
        workload = replace(smoke, dtype="float32")
        form = operator.for_workload(workload)
        detached = lambda *given: form.reference(given[0].detach(), *given[1:]) + 0 * given[0].sum()  # noqa: B023,E731
        for function, right in ((form.reference, True), (detached, False)):
            assert judge_on(workload, backward, timed_function(form, function, mode).call).ok is right


def test_functions_without_gradients_have_no_backward_mode() -> None:
    rms_norm = find_operator("rms_norm")
    with_residual = rms_norm.for_workload(smoke_workload(rms_norm, "RMSNorm with residual"))
    for operator in (find_operator("fp8_quant"), with_residual):
        with pytest.raises(OperatorError):
            in_mode(operator, "bwd")
    assert {one.group for one in in_mode(rms_norm, "bwd").workloads("default,smoke")} == {"RMSNorm"}
