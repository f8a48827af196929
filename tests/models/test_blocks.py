"""Blocks of models against plain formulas."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from kernels_bench_tools.models.baseline.L2 import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from kernels_bench_tools.models.baseline.parallel_state import tensor_parallel


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        yield


def filled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.data.normal_()
    return module


LINEAR = [
    lambda skip: ColumnParallelLinear(8, 6, skip_bias_add=skip),
    lambda skip: MergedColumnParallelLinear(8, [4, 2], skip_bias_add=skip),
    lambda skip: QKVParallelLinear(8, 2, 2, 1, skip_bias_add=skip),
    lambda skip: RowParallelLinear(8, 6, skip_bias_add=skip),
    lambda skip: ReplicatedLinear(8, 6, skip_bias_add=skip),
]


@pytest.mark.parametrize("make", LINEAR)
def test_a_linear_layer_returns_its_bias_only_where_it_did_not_add_it(make) -> None:
    x = torch.randn(3, 8)
    added, skipped = filled(make(False)), filled(make(True))
    skipped.load_state_dict(added.state_dict())

    with_bias, none = added(x)
    without_bias, bias = skipped(x)

    assert none is None
    torch.testing.assert_close(with_bias, x @ added.weight.T + added.bias)
    torch.testing.assert_close(without_bias + bias, with_bias)


def test_only_the_first_rank_of_a_row_parallel_layer_adds_the_bias() -> None:
    whole = filled(RowParallelLinear(8, 6))
    x = torch.randn(3, 8)
    parts = []
    for rank, own in enumerate(x.chunk(2, dim=1)):
        with tensor_parallel(rank, 2):
            module = RowParallelLinear(8, 6)
        for name, parameter in module.named_parameters():
            module.weight_loader(parameter, whole.get_parameter(name))
        parts.append(module(own)[0])

    torch.testing.assert_close(sum(parts), whole(x)[0])


@pytest.mark.parametrize(("kv_heads", "size"), [(8, 3), (2, 3)])
def test_heads_of_keys_that_cannot_be_shared_evenly_are_refused(kv_heads: int, size: int) -> None:
    with tensor_parallel(0, size), pytest.raises(ValueError, match="is not a multiple of"):
        QKVParallelLinear(8, 2, 24, kv_heads)
