"""Llama, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from kernels_bench_tools.models.baseline.L3.llama_decoder import LlamaDecoderLayer
from kernels_bench_tools.models.baseline.L4.causal_lm import CausalLM
from kernels_bench_tools.models.config import ModelConfig


class LlamaForCausalLM(CausalLM):
    """A model of Llama's layers; differs from vLLM: ``config`` instead of vLLM's own, and no ``prefix``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, LlamaDecoderLayer)
