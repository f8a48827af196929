"""The references of slices together are the reference of the whole, in every output."""

import pytest
from implementations import count_slices, smoke_workload
from torch import Tensor

from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import find_operator

ELEMENTS = "measure.inputs.SLICE_ELEMENTS"


@pytest.mark.parametrize(
    ("name", "group", "mode", "limit", "most", "count"),
    [
        *(("activation", "SwiGLU", mode, ELEMENTS, 4000, None) for mode in ("fwd", "bwd")),
        ("causal_conv1d", "", "fwd", ELEMENTS, 2 * 32 * 3, 3),
        ("cross_entropy", "Forward", "fwd", ELEMENTS, 3000, 3),
        ("cross_entropy", "Forward with gradients", "fwd", ELEMENTS, 3000, 3),
        ("grouped_gemm", "", "fwd", ELEMENTS, 5 * 3 * 128 // 8, None),
        ("kv_store", "", "fwd", ELEMENTS, 1, None),
        ("layer_norm", "", "fwd", ELEMENTS, 3000, None),
        ("matmul", "Linear with bias", "fwd", ELEMENTS, 7 * 128 // 8, None),
        ("mlp", "", "fwd", "operators.mlp.INTERMEDIATE_AT_ONCE", 5 * 2 * 96, None),
        ("paged_attention", "", "fwd", ELEMENTS, 2**24, 3),
        ("rotary", "", "fwd", ELEMENTS, 2 * 5 * 4 * 32, 4),
        ("rotary", "", "bwd", ELEMENTS, 2 * 5 * 4 * 32, 4),
        ("selective_scan", "Prefill", "fwd", ELEMENTS, 3 * 2 * 70 * 16, 3),
        *(("embedding", "", mode, ELEMENTS, 700, None) for mode in ("fwd", "bwd")),
        *(
            ("fp8_gemm", group, "fwd", "operators.fp8_gemm.WEIGHTS_AT_ONCE", 5 * 256, None)
            for group in ("Row-wise", "Blocks of 128")
        ),
    ],
)
def test_slices_cover_the_outputs(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    group: str,
    mode: str,
    limit: str,
    most: int,
    count: int | None,
) -> None:
    monkeypatch.setattr(f"kernels_bench_tools.{limit}", most)
    operator = in_mode(find_operator(name), mode)
    workload = smoke_workload(operator, group, "" if name == "fp8_gemm" else "float32")
    form = operator.for_workload(workload)
    # Values in FP8 are compared in float32, which torch can add.
    inputs = [
        one.float() if isinstance(one, Tensor) and one.is_floating_point() else one
        for one in form.inputs(workload, "cpu", 0)
    ]
    found = count_slices(form, tuple(inputs))
    assert found == count if count else found > 1
