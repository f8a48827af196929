"""Attention in Gluon, which nothing interprets: what a CPU can show of it, and on a Hopper GPU whether it is right."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from implementations import HOPPER, assert_right_on_a_gpu, module_of
from torch import Tensor

from kernels_bench_tools import Unsupported
from kernels_bench_tools.measure.operator import Operator, find_operator

OPERATOR: Operator = find_operator("flash_attn")
HALF = torch.bfloat16


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    pytest.importorskip("triton.experimental.gluon")
    return module_of("flash_attn", "gluon_attention", tmp_path_factory.mktemp("gluon"))


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
def test_tensors_that_the_memory_engine_can_read_are_not_copied(cell: ModuleType, layout: str) -> None:
    x = STRIDED[layout]()

    assert cell.fetchable(x) is x
    assert all(step % 8 == 0 for step in cell.steps(x))


@pytest.mark.parametrize("layout", COPIED)
def test_other_tensors_are_copied_and_keep_their_values(cell: ModuleType, layout: str) -> None:
    x = COPIED[layout]()

    found = cell.fetchable(x)

    assert found.is_contiguous()
    assert torch.equal(found, x)


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((1, 8, 2, 64), torch.float32, "bfloat16"),
        ((1, 8, 2, 32), HALF, "head_dim"),
        ((1, 4, 2, 64), HALF, "no key"),
    ],
)
def test_unsupported_inputs_are_refused_with_the_reason(
    cell: ModuleType, shape: tuple[int, ...], dtype: torch.dtype, reason: str
) -> None:
    q = tokens(shape[0], 8, *shape[2:], dtype=dtype)

    with pytest.raises(Unsupported, match=reason):
        cell.gluon_attention(q, tokens(*shape, dtype=dtype), tokens(*shape, dtype=dtype), True)


@pytest.mark.gpu
@HOPPER
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("batch", "queries", "keys", "heads", "kv_heads", "causal"),
    [
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
    ],
)
def test_it_is_correct_and_deterministic_on_a_hopper_gpu(
    cell: ModuleType,
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    causal: bool,
    head_dim: int,
    dtype: str,
) -> None:
    extents = batch, queries, keys, heads, kv_heads, head_dim, causal

    assert_right_on_a_gpu(OPERATOR, extents, dtype, cell.gluon_attention)
