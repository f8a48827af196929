from typing import Any

import pytest
import tiny_models
import torch
from tiny_configs import HUGGINGFACE
from torch import Tensor, distributed, multiprocessing

LENGTHS = (9, 5)


def logits_of_rank(
    rank: int, ranks: int, kind: str, backend: str, store: str, checkpoint: dict[str, Tensor]
) -> None:
    """Raise ``AssertionError`` unless the ranks' logits together are those of the undivided model."""
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    sequences, tables = tiny_models.random_tokens(*LENGTHS), tiny_models.block_tables()
    whole = tiny_models.loaded_model(kind, checkpoint)
    expected = tiny_models.logits(whole, sequences, LENGTHS, tables)

    distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    model = tiny_models.loaded_model(kind, checkpoint, rank, ranks).to(device)
    # The cache is no buffer of the model.
    model.allocate_kv_cache(tiny_models.BLOCKS, tiny_models.BLOCK_SIZE)
    own = [one.to(device) for one in sequences]
    logits = tiny_models.logits(model, own, LENGTHS, tables.to(device))
    parts: list[Any] = [None] * ranks
    distributed.all_gather_object(parts, logits.cpu())
    distributed.destroy_process_group()

    torch.testing.assert_close(torch.cat(parts, -1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "backend", "ranks"),
    [
        *((kind, "gloo", 4) for kind in sorted(HUGGINGFACE)),  # two ranks share each head of keys
        pytest.param("qwen3_moe", "nccl", 2, marks=pytest.mark.gpu),
    ],
)
def test_processes_that_add_up_their_parts_compute_the_logits_of_one_model(
    kind, backend, ranks, tmp_path
) -> None:
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    arguments = ranks, kind, backend, str(tmp_path / "store"), tiny_models.random_checkpoint(kind)
    # A forked process has the imports, but cannot use CUDA.
    method = "spawn" if backend == "nccl" else "fork"
    multiprocessing.start_processes(logits_of_rank, arguments, nprocs=ranks, start_method=method)
