"""Tiny models of every supported kind, with random weights under the names of Hugging Face's checkpoints."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tiny_configs import HUGGINGFACE
from torch import Tensor

from kernels_bench_tools.models.baseline.forward_context import plan_batch, set_forward_context
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model
from kernels_bench_tools.models.config import ModelConfig, config_from_huggingface

BLOCK_SIZE = 4
BLOCKS = 16
"""Of the cache; each of two sequences gets half of them."""


def tiny_config(kind: str) -> ModelConfig:
    return config_from_huggingface({"model_type": kind, **HUGGINGFACE[kind]}, f"tiny {kind}")


@cache
def reference_model(kind: str) -> Any:
    """Return transformers' model with weights with which each layer changes the result."""
    import transformers  # slow

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **HUGGINGFACE[kind])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, weight in model.named_parameters():
        weight.data.normal_(mean=1.0 if "norm" in name else 0.0, std=0.15)
    return model


@cache
def random_checkpoint(kind: str) -> dict[str, Tensor]:
    """Return the whole weights of that model, as transformers saves them."""
    from safetensors.torch import load_file

    with TemporaryDirectory() as folder:
        reference_model(kind).save_pretrained(folder)
        return load_file(Path(folder, "model.safetensors"))


def loaded_model(kind: str, checkpoint: dict[str, Tensor], rank: int = 0, size: int = 1) -> CausalLM:
    """Return one rank's model in float32 with an empty cache."""
    model = build_model(tiny_config(kind), "cpu", rank=rank, size=size, dtype=torch.float32)
    loaded = model.load_weights(checkpoint.items())
    assert loaded == {name for name, _ in model.named_parameters()}
    model.allocate_kv_cache(BLOCKS, BLOCK_SIZE)
    return model


def block_tables(seed: int = 0) -> Tensor:
    """Return the blocks of two sequences (2, BLOCKS / 2) in random order."""
    return torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed)).view(2, -1)


@torch.no_grad()
def logits(model: CausalLM, sequences: Sequence[Tensor], new: Sequence[int], tables: Tensor) -> Tensor:
    """Return the logits (tokens, vocabulary) of the last ``new`` tokens of each sequence."""
    positions, metadata = plan_batch(new, [len(one) for one in sequences], tables, BLOCK_SIZE)
    input_ids = torch.cat([one[len(one) - count :] for one, count in zip(sequences, new, strict=True)])
    with set_forward_context(metadata):
        return model.compute_logits(model(input_ids, positions))


def random_tokens(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    vocabulary = HUGGINGFACE["llama"]["vocab_size"]
    return [torch.randint(vocabulary, (length,), generator=generator) for length in lengths]
