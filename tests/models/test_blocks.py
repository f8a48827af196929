"""Blocks of models against plain formulas."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from kernels_bench_tools.models.baseline.L2 import RowParallelLinear
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


def test_only_the_first_rank_of_a_row_parallel_layer_adds_the_bias() -> None:
    whole = filled(RowParallelLinear(8, 6))
    x = torch.randn(3, 8)
    parts = []
    for rank, own in enumerate(x.chunk(2, dim=1)):
        with tensor_parallel(rank, 2):
            module = RowParallelLinear(8, 6)
        module.weight.copy_(whole.weight.chunk(2, dim=1)[rank])
        module.bias.copy_(whole.bias)
        parts.append(module(own))

    torch.testing.assert_close(sum(parts), whole(x))
