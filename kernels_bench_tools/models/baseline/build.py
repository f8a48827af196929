"""Construction of a configuration's model."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels_bench_tools.models.baseline.L4.causal_lm import CausalLM
from kernels_bench_tools.models.baseline.L4.llama import LlamaForCausalLM
from kernels_bench_tools.models.baseline.L4.mixtral import MixtralForCausalLM
from kernels_bench_tools.models.baseline.L4.qwen3_moe import Qwen3MoeForCausalLM
from kernels_bench_tools.models.baseline.parallel_state import tensor_parallel
from kernels_bench_tools.models.config import ModelConfig, ModelType, check_tensor_parallel

MODELS: dict[ModelType, Callable[[ModelConfig], CausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "mixtral": MixtralForCausalLM,
    "qwen2": LlamaForCausalLM,
    "qwen3": LlamaForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
}


def build_model(
    config: ModelConfig,
    device: str = "meta",
    *,
    rank: int = 0,
    size: int = 1,
    dtype: torch.dtype | None = None,
) -> CausalLM:
    """Return one rank's model with empty weights, of the configuration's dtype unless another is given.

    Raises:
        ModelError: The model cannot be split over ``size`` ranks.
        ValueError: There is no such rank.
    """
    check_tensor_parallel(config, size)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype or getattr(torch, config.dtype))
    try:
        with torch.device(device), tensor_parallel(rank, size):
            return MODELS[config.model_type](config)
    finally:
        torch.set_default_dtype(default)
