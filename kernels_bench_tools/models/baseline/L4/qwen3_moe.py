"""Qwen3 with experts."""

from __future__ import annotations

from kernels_bench_tools.models.baseline.L3.qwen3_moe_decoder import Qwen3MoeDecoderLayer
from kernels_bench_tools.models.baseline.L4.causal_lm import CausalLM
from kernels_bench_tools.models.config import ModelConfig


class Qwen3MoeForCausalLM(CausalLM):
    """A model of Qwen3's layers; differs from vLLM: ``config`` instead of vLLM's own, and no ``prefix``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, Qwen3MoeDecoderLayer)
