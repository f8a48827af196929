"""The grouped product in Gluon, which nothing interprets: what a CPU can show of it, and on a Hopper GPU whether it is right."""

from types import ModuleType

import pytest
import torch
from implementations import HOPPER, assert_right_on_a_gpu, module_of

from kernels_bench_tools import Unsupported
from kernels_bench_tools.measure.operator import Operator, find_operator

OPERATOR: Operator = find_operator("grouped_gemm")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    pytest.importorskip("triton.experimental.gluon")
    return module_of("grouped_gemm", "gluon_grouped", tmp_path_factory.mktemp("gluon"))


@pytest.mark.parametrize(("columns", "dtype"), [(64, torch.float32), (60, torch.bfloat16)])
def test_unsupported_inputs_are_refused_with_the_reason(
    cell: ModuleType, columns: int, dtype: torch.dtype
) -> None:
    x, weight = torch.zeros(4, columns, dtype=dtype), torch.zeros(2, 8, columns, dtype=dtype)

    with pytest.raises(Unsupported, match="bfloat16, and for columns"):
        cell.gluon_grouped(x, weight, torch.tensor([2, 4], dtype=torch.int32))


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("rows", "experts", "columns", "features", "skewed"),
    [
        (4096, 8, 1024, 1536, False),
        (4096, 8, 1024, 1536, True),
        (1, 8, 512, 768, False),
        (129, 1, 200, 264, False),
        (300, 128, 512, 520, True),
        (37, 8, 136, 72, False),
        (5000, 3, 64, 300, True),
    ],
)
def test_it_is_correct_and_deterministic_on_a_hopper_gpu(
    cell: ModuleType, rows: int, experts: int, columns: int, features: int, skewed: bool, dtype: str
) -> None:
    extents = rows, experts, columns, features, skewed

    assert_right_on_a_gpu(OPERATOR, extents, dtype, cell.gluon_grouped)
