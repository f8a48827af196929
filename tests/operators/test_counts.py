"""Bytes and operations of a call are counted from its tensors."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from formulas import fp8_quant
from implementations import counted, find, judge_on, smoke_workload
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import find_operator, tensors_of
from kernels_bench_tools.operators.fp8_gemm import torch_linear

NUMBERS, LOGITS, PAIRS = 2 * 32 * 256, 8 * 1000, 3 + 4 + 5
LAYER, VECTORS = 128 * 64 + 64 * 64 + 3 * 96 * 64, 2 * 64 + 2 * 16
"""Of a layer of the smoke set: numbers in its matrices, and in its norms."""
MODEL = 2 * LAYER + 256 * 64
INDICES = 8 * (3 + 3 + 9 + 3)
EARLIER, TOKEN = 3 * 19, 2 * 2 * 16
"""Tokens in the cache, and numbers of each."""
DECODE = {"kind": "qwen3", "sequences": 3, "tokens": 1}
CAUSAL = {"batch": 1, "seq_len": 3, "kv_len": 5, "heads": 4, "kv_heads": 2, "head_dim": 64, "causal": True}
# Operator, group, changed axes; operations.
COUNTS: list[tuple[str, str, dict[str, Any], int]] = [
    ("activation", "SwiGLU", {}, 16 * 256 * 5),
    ("activation", "GELU (tanh)", {}, 16 * 256 * 9),
    ("activation", "GeGLU", {}, 16 * 256 * 10),
    ("causal_conv1d", "", {}, 512 * (8 + 4)),
    ("causal_conv1d", "", {"width": 2, "activation": "none"}, 512 * 4),
    ("cross_entropy", "Forward", {}, LOGITS * 4),
    ("cross_entropy", "Forward with gradients", {}, LOGITS * 7),
    ("flash_attn", "", CAUSAL, 4 * PAIRS * 4 * 64),  # the last of three queries sees all five keys
    ("deformable_attention", "", {}, 2 * 20 * 2 * 2 * 4 * 16 * 8),  # of images, queries, heads, maps, points
    ("fp8_gemm", "Row-wise", {}, 2 * 16 * 256 * 384),
    ("fp8_gemm", "Blocks of 128", {}, 2 * 16 * 256 * 384),
    ("fp8_quant", "Blocks of 128x128", {"tokens": 130, "hidden_dim": 520}, 130 * 520 * 4),
    ("gated_delta_rule", "Step", {}, 7 * 4 * 32 * 32),  # of two sequences, with two heads
    ("grouped_gemm", "", {}, 2 * 24 * 128 * 64),
    ("layer_norm", "", {}, NUMBERS * 7),
    ("matmul", "Linear with bias", {}, 2 * 16 * 128 * 192),
    ("mlp", "", {}, 6 * 16 * 64 * 96),
    ("rms_norm", "RMSNorm", {}, NUMBERS * 4),
    ("rms_norm", "RMSNorm with residual", {}, NUMBERS * 5),
    ("rotary", "", {"batch": 2, "seq_len": 3, "heads": 32, "kv_heads": 8, "head_dim": 128}, 6 * 40 * 64 * 6),
    ("selective_scan", "Prefill", {}, 2 * 8 * 70 * (7 * 16 + 10)),
    ("ssd_scan", "Step", {}, 2 * 4 * 16 * (5 * 32 + 3)),
]
"""Operators that read all of their inputs and write all of their outputs."""
PARTLY: list[tuple[str, dict[str, Any], int, int, int]] = [
    (
        *("causal_lm", DECODE),
        2 * (EARLIER * 2 * TOKEN + MODEL + 2 * VECTORS + 64 + 3 * 64 + 16) + INDICES + 8 * 3,
        2 * (3 * 256 + 3 * 2 * TOKEN),
        2 * 3 * MODEL + 4 * 3 * 20 * 64 * 2,
    ),
    (
        *("decoder_layer", {**DECODE, "residual": False}),
        2 * (3 * 64 + EARLIER * TOKEN + 16 + LAYER + VECTORS) + INDICES,
        2 * (2 * 3 * 64 + 3 * TOKEN),
        2 * 3 * LAYER + 4 * 3 * 20 * 64,
    ),
    # Only weights of experts with rows.
    (
        *("grouped_gemm", {"rows": 2, "experts": 8, "in_features": 16, "out_features": 4, "skewed": False}),
        2 * (2 * 16 + 2 * 4 * 16) + 4 * 8,
        2 * 2 * 4,
        2 * 2 * 16 * 4,
    ),
    # Only slots that are written.
    ("kv_store", {}, 2 * 12 * 2 * 32 * 2 + 12 * 8, 2 * 12 * 2 * 32 * 2, 0),
]
"""Others, in bfloat16: operator, changed axes; bytes read, bytes written, operations."""
STORED = {
    "fp8_gemm": torch_linear,
    "fp8_quant": fp8_quant,
    **{name: find_operator(name).baseline for name in ("gated_delta_rule", "selective_scan", "ssd_scan")},
}
"""What returns results in the types that they are stored in, which the references do not."""


@pytest.mark.parametrize(("name", "group", "axes", "flops"), COUNTS)
def test_all_inputs_are_read_and_all_outputs_written(
    name: str, group: str, axes: dict[str, Any], flops: int
) -> None:
    operator = find(name)
    workload = smoke_workload(operator, group, "" if name == "fp8_gemm" else "bfloat16", **axes)
    form = operator.for_workload(workload)
    inputs = form.inputs(workload, "cpu", 0)
    outputs = STORED.get(name, form.reference)(*inputs)

    work = form.work(inputs, outputs)

    assert work.bytes_read == sum(one.nbytes for one in inputs if isinstance(one, Tensor))
    assert work.bytes_written == sum(one.nbytes for one in tensors_of(outputs))
    assert work.flops == flops


@pytest.mark.parametrize(("name", "axes", "read", "written", "flops"), PARTLY)
def test_only_what_a_call_touches_is_counted(
    name: str, axes: dict[str, Any], read: int, written: int, flops: int
) -> None:
    operator = find(name)

    assert counted(operator, smoke_workload(operator, "", "bfloat16", **axes)) == (read, written, flops)


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
