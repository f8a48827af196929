"""Models give the logits that Hugging Face transformers computes from the same weights."""

from pathlib import Path

import pytest
import torch
from tiny_configs import HUGGINGFACE
from tiny_models import block_tables, loaded_model, logits, random_tokens, randomize

from kernels_bench_tools.models.baseline.L1 import RotaryEmbedding
from kernels_bench_tools.models.config import config_from_huggingface, load_config

pytestmark = pytest.mark.filterwarnings("ignore")

safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("kind", sorted(HUGGINGFACE))
def test_logits_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    hf_config = transformers.AutoConfig.for_model(kind, **HUGGINGFACE[kind])
    hf_model = transformers.AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32).eval()
    for name, parameter in hf_model.named_parameters():
        randomize(name, parameter)
    hf_model.save_pretrained(tmp_path)
    config = config_from_huggingface(hf_config.to_dict(), kind)
    model = loaded_model(config, safetensors.load_file(tmp_path / "model.safetensors"))
    sequences = random_tokens(config, 30, 21)

    with torch.no_grad():
        expected = torch.cat([hf_model(one[None]).logits[0] for one in sequences])

    assert expected.std() > 0.1  # more than the tolerance can hide
    torch.testing.assert_close(
        logits(model, sequences, [30, 21], block_tables()), expected, rtol=0, atol=1e-4
    )


def test_stretched_rotary_frequencies_equal_those_of_transformers() -> None:
    config = load_config("llama-3.1-8b")
    scaling = config.rope_scaling
    hf_config = transformers.LlamaConfig(
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": config.rope_theta,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        },
    )
    hf_rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(hf_config)
    positions = torch.tensor([0, 1, 2, 15, 100, 1000, 4095, 8191, 8192, 100_000])
    ours = RotaryEmbedding(
        config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        base=config.rope_theta,
        rope_scaling=scaling,
    )

    cos, sin = hf_rotary(torch.zeros(1), positions[None])

    half = config.head_dim // 2
    expected = torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)
    torch.testing.assert_close(ours.cos_sin_cache[positions], expected, rtol=0, atol=1e-5)
