"""The references of slices together are the reference of the whole, in every output."""

import sys
from dataclasses import replace

import pytest
from implementations import ALL_SMOKE, count_slices, find, smoke_workload
from torch import Tensor

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.operator import Operator, Workload, built_in_modules, one_slice

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

    assert count_slices(form, tuple(inputs)) > (workload.group != "Blocks of 128x128")
