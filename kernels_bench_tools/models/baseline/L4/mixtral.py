"""Mixtral."""

from __future__ import annotations

from kernels_bench_tools.models.baseline.L3.mixtral_decoder import MixtralDecoderLayer
from kernels_bench_tools.models.baseline.L4.causal_lm import CausalLM
from kernels_bench_tools.models.config import ModelConfig


class MixtralForCausalLM(CausalLM):
    """A model of Mixtral's layers; differs from vLLM: ``config`` instead of vLLM's own, and no ``prefix``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, MixtralDecoderLayer)
