"""Tiny models of every supported kind, with random weights under the names of Hugging Face's checkpoints."""

from collections.abc import Sequence

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


def randomize(name: str, weight: Tensor) -> None:
    """Fill a weight so that each layer changes the result."""
    with torch.no_grad():
        weight.normal_(mean=1.0 if "norm" in name else 0.0, std=0.15)


def random_checkpoint(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Return whole weights with the names that Hugging Face's checkpoints have."""
    hidden, head = config.hidden_size, config.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        sizes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        path = f"model.layers.{layer}"
        sizes[f"{path}.input_layernorm.weight"] = sizes[f"{path}.post_attention_layernorm.weight"] = (hidden,)
        heads = {
            "q": config.num_attention_heads,
            "k": config.num_key_value_heads,
            "v": config.num_key_value_heads,
        }
        for key, count in heads.items():
            sizes[f"{path}.self_attn.{key}_proj.weight"] = (count * head, hidden)
            if config.qkv_bias:
                sizes[f"{path}.self_attn.{key}_proj.bias"] = (count * head,)
            if config.qk_norm and key != "v":
                sizes[f"{path}.self_attn.{key}_norm.weight"] = (head,)
        sizes[f"{path}.self_attn.o_proj.weight"] = (hidden, config.num_attention_heads * head)
        sizes |= _feed_forward_sizes(config, path)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(size, generator=generator) * 0.15 + (1.0 if "norm" in name else 0.0)
        for name, size in sizes.items()
    }


def _feed_forward_sizes(config: ModelConfig, path: str) -> dict[str, tuple[int, ...]]:
    hidden, experts = config.hidden_size, config.experts
    if experts is None:
        up = (config.intermediate_size, hidden)
        return {f"{path}.mlp.{key}_proj.weight": up for key in ("gate", "up")} | {
            f"{path}.mlp.down_proj.weight": up[::-1]
        }
    mixtral = config.model_type == "mixtral"
    block = f"{path}.block_sparse_moe" if mixtral else f"{path}.mlp"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    sizes: dict[str, tuple[int, ...]] = {f"{block}.gate.weight": (experts.num_experts, hidden)}
    for expert in range(experts.num_experts):
        for key in (gate, up):
            sizes[f"{block}.experts.{expert}.{key}.weight"] = (experts.intermediate_size, hidden)
        sizes[f"{block}.experts.{expert}.{down}.weight"] = (hidden, experts.intermediate_size)
    return sizes


def loaded_model(
    config: ModelConfig, checkpoint: dict[str, Tensor], rank: int = 0, size: int = 1
) -> CausalLM:
    """Return one rank's model in float32 with an empty cache."""
    model = build_model(config, "cpu", rank=rank, size=size, dtype=torch.float32)
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


def random_tokens(config: ModelConfig, *lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(config.vocab_size, (length,), generator=generator) for length in lengths]
