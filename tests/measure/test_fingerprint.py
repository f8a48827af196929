import pytest
import torch

from kernels_bench_tools.measure.judge.memory import copy_elsewhere, fingerprint, same_bits

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 1001])
def test_any_changed_element_changes_the_fingerprint(dtype: torch.dtype, size: int) -> None:
    value = torch.ones(size, dtype=dtype)
    before = fingerprint(value)
    assert fingerprint(value.clone()) == before

    for place in {0, size // 2, size - 1}:
        changed = value.clone()
        changed[place] = 0
        assert fingerprint(changed) != before
        assert not same_bits(changed, value)


def test_nan_is_the_same_as_itself_and_a_signed_zero_is_not() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_a_copy_elsewhere_is_aligned_equal_and_no_view() -> None:
    value = torch.randn(3, 5)
    copies = [copy_elsewhere(value) for _ in range(8)]

    assert all(torch.equal(copy, value) and copy._base is None for copy in copies)
    assert all(copy.storage_offset() * 4 % 512 == 0 < copy.storage_offset() for copy in copies)
