"""Whole models: the logits of transformers, whatever the cache, the phases and the simulated ranks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from tiny_configs import HUGGINGFACE
from tiny_models import (
    BLOCK_SIZE,
    block_tables,
    loaded_model,
    logits,
    random_checkpoint,
    random_tokens,
    reference_model,
    tiny_config,
)
from torch import Tensor

from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.models.baseline.forward_context import plan_batch
from kernels_bench_tools.models.baseline.L1 import AllReduce
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model

pytestmark = pytest.mark.filterwarnings("ignore")
transformers = pytest.importorskip("transformers")
KINDS = sorted(HUGGINGFACE)
CLOSE = {"rtol": 0.0, "atol": 1e-4}


def model_of(kind: str) -> CausalLM:
    return loaded_model(kind, random_checkpoint(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers_in_prefilling_and_decoding(kind: str) -> None:
    sequences, tables = random_tokens(30, 21), block_tables()
    with torch.no_grad():
        expected = [reference_model(kind)(one[None]).logits[0] for one in sequences]
    assert expected[0].std() > 0.1  # more than the tolerance can hide

    prefilled = logits(model_of(kind), sequences, [30, 21], tables)

    torch.testing.assert_close(prefilled, torch.cat(expected), **CLOSE)
    model = model_of(kind)
    logits(model, [sequences[0][:20], sequences[1][:11]], [20, 11], tables)
    for step in range(1, 10):
        seen = [sequences[0][: 20 + step], sequences[1][: 11 + step]]
        decoded = logits(model, seen, [1, 1], tables)
        torch.testing.assert_close(
            decoded, torch.stack([expected[0][19 + step], expected[1][10 + step]]), **CLOSE
        )


def test_a_chunk_of_a_prompt_beside_a_decoding_sequence_gives_the_logits_of_prefilling() -> None:
    sequences, tables = random_tokens(15, 20), block_tables()
    whole = logits(model_of("qwen3"), sequences, [15, 20], tables).split([15, 20])
    model = model_of("qwen3")
    logits(model, [sequences[0][:14], sequences[1][:9]], [14, 9], tables)

    mixed = logits(model, sequences, [1, 11], tables)

    torch.testing.assert_close(mixed, torch.cat((whole[0][14:], whole[1][9:])), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_simulated_ranks_concatenate_to_those_of_one(kind: str) -> None:
    size = 4  # two share each head of keys
    sequences, tables = random_tokens(11, 7), block_tables()
    expected = logits(model_of(kind), sequences, [11, 7], tables)
    sums = SumOverThreads(size)

    def run(rank: int) -> Tensor:
        model = loaded_model(kind, random_checkpoint(kind), rank, size)
        for module in model.modules():
            if isinstance(module, AllReduce):
                module.register_forward_hook(sums.hook(rank))
        return logits(model, sequences, [11, 7], tables)

    with ThreadPoolExecutor(size) as threads:
        parts = list(threads.map(run, range(size)))

    assert expected.shape[1] == HUGGINGFACE[kind]["vocab_size"]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, **CLOSE)


class SumOverThreads:
    """Adds up tensors of ranks that run in threads."""

    def __init__(self, size: int) -> None:
        self.parts: list[Any] = [None] * size
        self.barrier = Barrier(size, timeout=60)

    def hook(self, rank: int) -> Callable[..., Tensor]:
        def exchange(module: AllReduce, inputs: Any, output: Tensor) -> Tensor:
            self.parts[rank] = output
            self.barrier.wait()
            total = torch.stack(self.parts).sum(dim=0)
            self.barrier.wait()  # nobody overwrites a part that another still adds
            return total

        return exchange


def without_cache() -> Tensor:
    model = model_of("llama")
    model.model.layers[1].self_attn.kv_cache = None
    return logits(model, random_tokens(3, 3), [3, 3], block_tables())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: build_model(tiny_config("llama"), size=3), ModelError, "num_attention_heads 4"),
        (lambda: build_model(tiny_config("llama"), rank=2, size=2), ValueError, "no rank 2 of 2"),
        (lambda: plan_batch([4, 1], [4, 9], block_tables(), BLOCK_SIZE), ValueError, "come first"),
        (lambda: plan_batch([1], [33], block_tables()[:1], BLOCK_SIZE), ValueError, "do not hold 33 tokens"),
        (without_cache, RuntimeError, "allocate_kv_cache"),
        (lambda: model_of("llama")(*random_tokens(3), torch.arange(3)), LookupError, "attention_metadata"),
    ],
)
def test_what_a_model_cannot_compute_is_an_error(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
