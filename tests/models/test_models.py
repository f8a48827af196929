"""Whole models: cache, phases and simulated ranks do not change the result."""

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
    tiny_config,
)
from torch import Tensor

from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.models.baseline.forward_context import plan_batch
from kernels_bench_tools.models.baseline.L1 import AllReduce
from kernels_bench_tools.models.baseline.L4 import build_model

KINDS = sorted(HUGGINGFACE)
CLOSE = {"rtol": 0.0, "atol": 1e-4}


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_gives_the_logits_of_prefilling(kind: str) -> None:
    config = tiny_config(kind)
    checkpoint, tables = random_checkpoint(config), block_tables()
    sequences = random_tokens(config, 23, 18)
    whole = logits(loaded_model(config, checkpoint), sequences, [23, 18], tables).split([23, 18])
    model = loaded_model(config, checkpoint)
    logits(model, [sequences[0][:14], sequences[1][:9]], [14, 9], tables)

    for step in range(1, 10):
        seen = [sequences[0][: 14 + step], sequences[1][: 9 + step]]
        decoded = logits(model, seen, [1, 1], tables)
        expected = torch.stack([whole[0][13 + step], whole[1][8 + step]])
        torch.testing.assert_close(decoded, expected, **CLOSE)
    assert whole[0].std() > 0.1  # more than the tolerance can hide


def test_a_chunk_of_a_prompt_beside_a_decoding_sequence_gives_the_logits_of_prefilling() -> None:
    config = tiny_config("qwen3")
    checkpoint, tables = random_checkpoint(config), block_tables()
    sequences = random_tokens(config, 15, 20)
    whole = logits(loaded_model(config, checkpoint), sequences, [15, 20], tables).split([15, 20])
    model = loaded_model(config, checkpoint)
    logits(model, [sequences[0][:14], sequences[1][:9]], [14, 9], tables)

    mixed = logits(model, sequences, [1, 11], tables)

    torch.testing.assert_close(mixed, torch.cat((whole[0][14:], whole[1][9:])), **CLOSE)


def test_a_sequence_does_not_see_the_other_one() -> None:
    config = tiny_config("llama")
    model, tables = loaded_model(config, random_checkpoint(config)), block_tables()
    first, second, third = random_tokens(config, 12, 12, 12)

    together = logits(model, [first, second], [12, 12], tables)
    changed = logits(model, [first, third], [12, 12], tables)

    assert torch.equal(together[:12], changed[:12])
    assert not torch.allclose(together[12:], changed[12:], atol=1e-2)


def test_the_order_of_blocks_in_the_cache_does_not_matter() -> None:
    config = tiny_config("llama")
    sequences = random_tokens(config, 23, 18)
    results = []
    for seed in (0, 1):
        model, tables = loaded_model(config, random_checkpoint(config)), block_tables(seed)
        logits(model, [one[:-1] for one in sequences], [22, 17], tables)
        results.append(logits(model, sequences, [1, 1], tables))

    assert not torch.equal(block_tables(0), block_tables(1))
    torch.testing.assert_close(results[0], results[1], **CLOSE)


def test_the_content_of_the_cache_is_what_decoding_reads() -> None:
    config = tiny_config("llama")
    sequences, tables = random_tokens(config, 23, 18), block_tables()
    model = loaded_model(config, random_checkpoint(config))
    logits(model, [one[:-1] for one in sequences], [22, 17], tables)
    before = logits(model, sequences, [1, 1], tables)
    model.model.layers[0].self_attn.kv_cache[1, tables[0, 2]] += (
        1  # values of one block of the first sequence
    )

    after = logits(model, sequences, [1, 1], tables)

    assert not torch.allclose(before[0], after[0], atol=1e-3)
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("size", [2, 4])  # with 4 ranks, two share each head of keys
@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_simulated_ranks_concatenate_to_those_of_one(kind: str, size: int) -> None:
    config = tiny_config(kind)
    checkpoint, tables = random_checkpoint(config), block_tables()
    sequences = random_tokens(config, 11, 7)
    expected = logits(loaded_model(config, checkpoint), sequences, [11, 7], tables)
    sums = SumOverThreads(size)

    def run(rank: int) -> Tensor:
        model = loaded_model(config, checkpoint, rank, size)
        for module in model.modules():
            if isinstance(module, AllReduce):
                module.register_forward_hook(sums.hook(rank))
        return logits(model, sequences, [11, 7], tables)

    with ThreadPoolExecutor(size) as threads:
        parts = list(threads.map(run, range(size)))

    assert expected.shape[1] == config.vocab_size
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, **CLOSE)


def test_a_size_that_does_not_divide_the_model_is_refused_before_it_is_built() -> None:
    with pytest.raises(ModelError, match="num_attention_heads 4"):
        build_model(tiny_config("llama"), size=3)


def test_a_batch_with_a_decoding_sequence_behind_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="come first"):
        plan_batch([4, 1], [4, 9], block_tables(), BLOCK_SIZE)


def test_a_block_table_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="do not hold 33 tokens"):
        plan_batch([1], [33], block_tables()[:1], BLOCK_SIZE)


def test_attention_without_a_cache_says_what_to_call() -> None:
    config = tiny_config("llama")
    model = loaded_model(config, random_checkpoint(config))
    model.model.layers[1].self_attn.kv_cache = None

    with pytest.raises(RuntimeError, match="allocate_kv_cache"):
        logits(model, random_tokens(config, 3, 3), [3, 3], block_tables())


def test_a_model_outside_of_a_forward_context_is_an_error() -> None:
    config = tiny_config("llama")
    model = loaded_model(config, random_checkpoint(config))
    (tokens,) = random_tokens(config, 3)

    with pytest.raises(LookupError, match="attention_metadata"):
        model(tokens, torch.arange(3))


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no rank 2 of 2"):
        build_model(tiny_config("llama"), rank=2, size=2)


def test_slots_follow_the_block_table() -> None:
    positions, batch = plan_batch([1, 3], [6, 5], torch.tensor([[7, 2], [5, 0]]), BLOCK_SIZE)

    assert positions.tolist() == [5, 2, 3, 4]
    assert batch.slot_mapping.tolist() == [9, 22, 23, 0]
    assert batch.num_decodes == 1


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
