"""Kernels in Gluon, which nothing interprets: what a CPU can show of them, and on a Hopper GPU whether they are right."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from implementations import HOPPER, assert_correct, module_of
from torch import Tensor

from kernels_bench_tools import Unsupported
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.operator import find_operator

HALF = torch.bfloat16
KERNELS = {"flash_attn": "gluon_attention", "grouped_gemm": "gluon_grouped"}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The code of each operator's notebook."""
    pytest.importorskip("triton.experimental.gluon")
    return {
        operator: module_of(operator, name, tmp_path_factory.mktemp(name))
        for operator, name in KERNELS.items()
    }


def tokens(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(shape).to(dtype)


STRIDED: dict[str, Callable[[], Tensor]] = {
    "as the operator has them": lambda: tokens(2, 5, 4, 64),
    "heads first": lambda: tokens(2, 4, 5, 64).transpose(1, 2),
    "every other head": lambda: tokens(2, 5, 8, 64)[:, :, ::2],
    "one entry, from an odd place of a batch": lambda: tokens(3, 5, 4, 64)[1:2],
    "one head, of a row with eight elements behind it": lambda: tokens(2, 5, 1, 72)[..., :64],
}
COPIED: dict[str, Callable[[], Tensor]] = {
    "elements apart": lambda: tokens(2, 5, 4, 128)[..., ::2],
    "rows of 134 bytes": lambda: tokens(2, 5, 4, 67)[..., :64],
    "two bytes past an address the engine takes": lambda: tokens(2, 5, 4, 72)[..., 1:65],
    "one key for all": lambda: tokens(2, 1, 4, 64).expand(2, 5, 4, 64),
}


@pytest.mark.parametrize("layout", STRIDED)
def test_tensors_that_the_memory_engine_can_read_are_not_copied(
    cells: dict[str, ModuleType], layout: str
) -> None:
    cell, x = cells["flash_attn"], STRIDED[layout]()

    assert cell.fetchable(x) is x
    assert all(step % 8 == 0 for step in cell.steps(x))


@pytest.mark.parametrize("layout", COPIED)
def test_other_tensors_are_copied_and_keep_their_values(cells: dict[str, ModuleType], layout: str) -> None:
    x = COPIED[layout]()

    found = cells["flash_attn"].fetchable(x)

    assert found.is_contiguous()
    assert torch.equal(found, x)


def attention(keys: int, head_dim: int, dtype: torch.dtype) -> tuple[Any, ...]:
    k, v = (tokens(1, keys, 2, head_dim, dtype=dtype) for _ in range(2))
    return tokens(1, 8, 2, head_dim, dtype=dtype), k, v, True


def grouped(columns: int, dtype: torch.dtype) -> tuple[Any, ...]:
    ends = torch.tensor([2, 4], dtype=torch.int32)
    return torch.zeros(4, columns, dtype=dtype), torch.zeros(2, 8, columns, dtype=dtype), ends


@pytest.mark.parametrize(
    ("operator", "inputs", "reason"),
    [
        ("flash_attn", attention(8, 64, torch.float32), "bfloat16"),
        ("flash_attn", attention(8, 32, HALF), "head_dim"),
        ("flash_attn", attention(4, 64, HALF), "no key"),
        ("grouped_gemm", grouped(64, torch.float32), "bfloat16, and for columns"),
        ("grouped_gemm", grouped(60, HALF), "bfloat16, and for columns"),
    ],
)
def test_unsupported_inputs_are_refused_with_the_reason(
    cells: dict[str, ModuleType], operator: str, inputs: tuple[Any, ...], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        getattr(cells[operator], KERNELS[operator])(*inputs)


# Of attention, batch, queries, keys, heads, heads of keys and whether it is causal; head_dim comes before the last.
ATTENTION = [
    (1, 512, 512, 4, 4, False),
    (1, 512, 512, 4, 4, True),
    (2, 300, 517, 4, 2, False),
    (3, 1, 130, 2, 1, False),
    (3, 1, 130, 2, 1, True),
    (1, 129, 129, 11, 11, False),
    (1, 129, 129, 11, 11, True),
    (3, 190, 190, 24, 8, False),
    (3, 190, 190, 24, 8, True),
    (1, 64, 8192, 32, 8, False),
]
GROUPED = [
    (4096, 8, 1024, 1536, False),
    (4096, 8, 1024, 1536, True),
    (1, 8, 512, 768, False),
    (129, 1, 200, 264, False),
    (300, 128, 512, 520, True),
    (37, 8, 136, 72, False),
    (5000, 3, 64, 300, True),
]


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("operator", "extents"),
    [
        *(
            ("flash_attn", (*sizes, head_dim, causal))
            for *sizes, causal in ATTENTION
            for head_dim in (64, 128)
        ),
        *(("grouped_gemm", sizes) for sizes in GROUPED),
    ],
)
def test_it_is_correct_and_deterministic_on_a_hopper_gpu(
    cells: dict[str, ModuleType], operator: str, extents: tuple[Any, ...], dtype: str
) -> None:
    kernel = getattr(cells[operator], KERNELS[operator])

    found = find_operator(operator)
    axes = dict(zip(found.axes, extents, strict=True))
    workload = replace(found.workloads("smoke")[0], axes=axes, dtype=dtype)
    inputs = found.inputs(workload, "cuda", 0)

    verdict = check(found, workload, kernel, inputs)

    assert_correct(verdict)
    assert "refused" not in verdict.corr
    once = kernel(*inputs)
    assert all(torch.equal(kernel(*inputs), once) for _ in range(20))
