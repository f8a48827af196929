from typing import Any

import pytest
import tiny_models
import torch
from torch import Tensor, distributed, multiprocessing

KIND, RANKS, LENGTHS = "qwen3_moe", 2, (9, 5)


def logits_of_rank(rank: int, backend: str, store: str, checkpoint: dict[str, Tensor]) -> None:
    """Raise ``AssertionError`` unless the ranks' logits together are those of the undivided model."""
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    sequences, tables = tiny_models.random_tokens(*LENGTHS), tiny_models.block_tables()
    whole = tiny_models.loaded_model(KIND, checkpoint)
    expected = tiny_models.logits(whole, sequences, LENGTHS, tables)

    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model = tiny_models.loaded_model(KIND, checkpoint, rank, RANKS).to(device)
    # The cache is no buffer of the model.
    model.allocate_kv_cache(tiny_models.BLOCKS, tiny_models.BLOCK_SIZE)
    own = [one.to(device) for one in sequences]
    logits = tiny_models.logits(model, own, LENGTHS, tables.to(device))
    parts: list[Any] = [None] * RANKS
    distributed.all_gather_object(parts, logits.cpu())
    distributed.destroy_process_group()

    torch.testing.assert_close(torch.cat(parts, -1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def test_processes_that_add_up_their_parts_compute_the_logits_of_one_model(backend, tmp_path) -> None:
    if backend == "nccl" and torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs")
    arguments = backend, str(tmp_path / "store"), tiny_models.random_checkpoint(KIND)
    # A forked process has the imports, but cannot use CUDA.
    method = "spawn" if backend == "nccl" else "fork"
    multiprocessing.start_processes(logits_of_rank, arguments, nprocs=RANKS, start_method=method)
