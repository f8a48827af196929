"""Whole models: the logits of transformers, whatever the cache, the phases and the ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_configs import HUGGINGFACE
from tiny_models import (
    BLOCK_SIZE,
    BLOCKS,
    block_tables,
    loaded_model,
    logits,
    random_checkpoint,
    random_tokens,
    reference_model,
    tiny_config,
)
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional

from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.models.baseline.forward_context import plan_batch
from kernels_bench_tools.models.baseline.L2 import RowParallelLinear
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model
from kernels_bench_tools.models.baseline.parallel_state import tensor_parallel

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


@torch.no_grad()
def test_only_the_first_rank_of_a_row_parallel_layer_adds_the_bias() -> None:
    x, weight, bias, parts = torch.randn(3, 8), torch.randn(6, 8), torch.randn(6), []
    for size, rank in ((1, 0), (2, 0), (2, 1)):
        with tensor_parallel(rank, size):
            module = RowParallelLinear(8, 6)
        module.weight.copy_(weight.chunk(size, 1)[rank])
        module.bias.copy_(bias)
        parts.append(module(x.chunk(size, 1)[rank]))

    torch.testing.assert_close(parts[1] + parts[2], parts[0])
    torch.testing.assert_close(parts[0], functional.linear(x, weight, bias))


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


LENGTHS = (9, 5)


def logits_of_rank(
    rank: int, ranks: int, kind: str, backend: str, store: str, checkpoint: dict[str, Tensor]
) -> None:
    """Raise ``AssertionError`` unless the ranks' logits together are those of the undivided model."""
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    sequences, tables = random_tokens(*LENGTHS), block_tables()
    whole = loaded_model(kind, checkpoint)
    expected = logits(whole, sequences, LENGTHS, tables)

    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    model = loaded_model(kind, checkpoint, rank, ranks).to(device)
    # The cache is no buffer of the model.
    model.allocate_kv_cache(BLOCKS, BLOCK_SIZE)
    own = [one.to(device) for one in sequences]
    found = logits(model, own, LENGTHS, tables.to(device))
    parts: list[Any] = [None] * ranks
    distributed.all_gather_object(parts, found.cpu())
    distributed.destroy_process_group()

    torch.testing.assert_close(torch.cat(parts, -1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "backend", "ranks"),
    [
        *((kind, "gloo", 4) for kind in KINDS),  # two ranks share each head of keys
        pytest.param("qwen3_moe", "nccl", 2, marks=pytest.mark.gpu),
    ],
)
def test_processes_that_add_up_their_parts_compute_the_logits_of_one_model(
    kind, backend, ranks, tmp_path
) -> None:
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    arguments = ranks, kind, backend, str(tmp_path / "store"), random_checkpoint(kind)
    # A forked process has the imports, but cannot use CUDA.
    method = "spawn" if backend == "nccl" else "fork"
    multiprocessing.start_processes(logits_of_rank, arguments, nprocs=ranks, start_method=method)
