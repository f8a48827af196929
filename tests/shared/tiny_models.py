"""Tiny models of every supported kind, with random weights under the names of Hugging Face's checkpoints."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tiny_configs import HUGGINGFACE
from torch import Tensor
from torch.nn import functional

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


MERGED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w13_weight": ("gate_proj", "up_proj"),
    "w2_weight": ("down_proj",),
}
"""Layers of a checkpoint that are one here."""
KEY_HEADS = HUGGINGFACE["llama"]["num_key_value_heads"]
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def _part_of_rank(
    name: str, shape: Sequence[int], checkpoint: dict[str, Tensor], rank: int, size: int
) -> Tensor:
    """Return one rank's part of a weight; ranks share a head of keys where there are fewer heads than ranks."""
    path, _, last = name.rpartition(".")
    if last in MERGED:  # of experts
        names = MIXTRAL if "block_sparse_moe" in name else {}
        axis, layers = int(last == "w2_weight"), [names.get(layer, layer) for layer in MERGED[last]]
        experts = [
            [checkpoint[f"{path}.{expert}.{layer}.weight"].chunk(size, axis)[rank] for layer in layers]
            for expert in range(shape[0])
        ]
        return torch.stack([torch.cat(parts) for parts in experts])
    layer = path.rpartition(".")[2]
    parts = []
    for part in MERGED.get(layer, (layer,)):
        whole = checkpoint[name.replace(layer, part)]
        if part in {"embed_tokens", "lm_head"}:
            parts.append(functional.pad(whole, (0, 0, 0, shape[0] * size - len(whole))).chunk(size)[rank])
        elif layer in MERGED:
            count = min(size, KEY_HEADS) if part in {"k_proj", "v_proj"} else size
            parts.append(whole.chunk(count)[rank * count // size])
        else:
            parts.append(whole.chunk(size, 1)[rank] if whole.shape != shape else whole)
    return torch.cat(parts)


def loaded_model(kind: str, checkpoint: dict[str, Tensor], rank: int = 0, size: int = 1) -> CausalLM:
    """Return one rank's model in float32 with an empty cache."""
    model = build_model(tiny_config(kind), "cpu", rank=rank, size=size, dtype=torch.float32)
    for name, weight in model.named_parameters():
        weight.data.copy_(_part_of_rank(name, weight.shape, checkpoint, rank, size))
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
