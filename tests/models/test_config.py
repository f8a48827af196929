"""Configurations of models are read, and what cannot be computed is refused by name."""

import msgspec
import pytest
from tiny_configs import HUGGINGFACE

from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.models.config import (
    TransformersConfig,
    check_tensor_parallel,
    config_for,
    config_from_huggingface,
    load_config,
)
from kernels_bench_tools.models.forward_pass import transformers_model
from kernels_bench_tools.records.model import CONFIGS, find_model, model_keys
from kernels_bench_tools.records.request import TRANSFORMERS, EffectRequest

LLAMA = {"model_type": "llama", **HUGGINGFACE["llama"]}
QWEN3 = {"model_type": "qwen3", **HUGGINGFACE["qwen3"]}
MISTRAL = {"model_type": "mistral", **HUGGINGFACE["mistral"]}
MIXTRAL = {"model_type": "mixtral", **HUGGINGFACE["mixtral"]}


@pytest.mark.parametrize("key", model_keys(CONFIGS))
def test_a_model_of_this_package_has_a_source_and_its_key_as_name(key: str) -> None:
    config = load_config(key)

    assert config.name == key
    assert config.source.startswith("https://huggingface.co/")


@pytest.mark.parametrize(
    ("key", "parameters"), [("falcon-mamba-7b", 7_272_665_088), ("qwen3-next-80b-a3b", 79_674_391_296)]
)
def test_a_model_that_only_transformers_has_is_that_of_its_source(key: str, parameters: int) -> None:
    data = msgspec.json.decode(find_model(CONFIGS, key).read_bytes())
    config = config_for(TRANSFORMERS, data, key)
    request = EffectRequest(model=key, config=data, phases=[], framework=TRANSFORMERS)
    model = transformers_model(request, "meta")

    assert isinstance(config, TransformersConfig)
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    if "transformers" in config.source:  # whose defaults they are
        defaults = type(model.config)().to_dict()
        assert {name: value for name, value in data.items() if name != "source"}.items() <= defaults.items()
    with pytest.raises(ModelError, match="Use `--framework transformers` for other models"):
        load_config(key)


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ModelError, match=r"Did you mean 'llama-3\.1-8b'"):
        load_config("llama-3.1-8")


NOT_QUANTIZED = "is not supported.*not quantized"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"model_type": "bert"}, 'model_type "bert" is not supported.*llama or mistral or'),
        (
            {**MIXTRAL, **dict.fromkeys(("hidden_size", "vocab_size", "num_local_experts"))},
            "has no hidden_size, vocab_size, num_local_experts",
        ),
        ({**LLAMA, "hidden_size": "48"}, r"\$\.hidden_size"),
        ({**LLAMA, "num_hidden_layers": 0}, r"\$\.num_hidden_layers"),
        ({**LLAMA, "num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
        ({**LLAMA, "head_dim": 15}, "head_dim 15 is not a positive even"),
        ({**LLAMA, "hidden_size": 50}, "hidden_size is not a multiple of num_attention_heads"),
        (
            {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]},
            'architectures .*Eagle3.*"LlamaForCausalLM"',
        ),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn"}}, 'rope_type "yarn"'),
        ({**LLAMA, "rope_scaling": {"type": "llama3"}}, "factor"),
        ({**LLAMA, "rope_scaling": "llama3"}, "Expected `object`"),
        ({**LLAMA, "hidden_act": "gelu"}, 'hidden_act "gelu"'),
        ({**LLAMA, "attention_bias": True}, "attention_bias true"),
        (
            {**LLAMA, "torch_dtype": "float8_e4m3fn"},
            'torch_dtype "float8_e4m3fn".*"bfloat16" or "float16" or',
        ),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({**QWEN3, "rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        (
            {**QWEN3, "layer_types": ["sliding_attention", "full_attention"]},
            '"sliding_attention" in layer_types',
        ),
        ({**QWEN3, "head_dim": None}, "has no head_dim"),  # 128 in transformers
        ({**LLAMA, "model_type": "mistral"}, "sliding_window 4096.*Expected: null"),  # if it has none
        ({**MISTRAL, "sliding_window": 4096}, "sliding_window 4096.*Expected: null"),
        ({**MIXTRAL, "sliding_window": 4096}, "sliding_window 4096.*Expected: null"),
        ({**MIXTRAL, "num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({**QWEN3, "quantization": {"group_size": 64, "bits": 4}}, f"quantization .*{NOT_QUANTIZED}"),
        ({**QWEN3, "load_in_8bit": True}, f"load_in_8bit true {NOT_QUANTIZED}"),
        ({**QWEN3, "bits": 4}, f"bits 4 {NOT_QUANTIZED}"),
        (
            {**QWEN3, "weights": {"stored": {"quantized": True}}},
            f"weights.stored.quantized true {NOT_QUANTIZED}",
        ),
    ],
)
def test_what_the_modules_do_not_compute_is_refused_by_name(data: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=f"mine: .*{said}"):
        config_from_huggingface(data, "mine")


@pytest.mark.parametrize("value", [None, False, {}, ""])
def test_a_key_that_says_that_nothing_is_quantized_is_accepted(value) -> None:
    found = config_from_huggingface({**LLAMA, "quantization_config": value, "quantized": value}, "mine")

    assert found == config_from_huggingface(LLAMA, "mine")


@pytest.mark.parametrize("kind", [*HUGGINGFACE])
@pytest.mark.parametrize("absent", [True, False], ids=["absent", "null"])
def test_what_a_file_lacks_is_what_transformers_assumes(kind, absent) -> None:
    transformers = pytest.importorskip("transformers")
    given = {
        key: value
        for key, value in HUGGINGFACE[kind].items()
        if key not in {"rope_scaling", "rope_parameters"}
    }
    lacking = {key: value for key, value in given.items() if key not in {"rope_theta", "rms_norm_eps"}}
    data = lacking if absent else {**lacking, "rope_theta": None, "rms_norm_eps": None}
    config = config_from_huggingface({"model_type": kind, **data}, "mine")
    expected = transformers.AutoConfig.for_model(kind, **lacking)

    assert config.rope_theta == expected.rope_parameters["rope_theta"]
    assert config.rms_norm_eps == expected.rms_norm_eps


def test_absent_heads_of_keys_and_their_size_are_derived() -> None:
    config = config_from_huggingface({**LLAMA, "num_key_value_heads": None, "head_dim": None}, "mine")

    assert (config.num_key_value_heads, config.head_dim) == (4, 12)


def test_rotary_parameters_are_read_from_newer_and_older_files() -> None:
    newer = {key: value for key, value in LLAMA.items() if key not in {"rope_theta", "rope_scaling"}}
    newer["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": LLAMA["rope_theta"]}

    older = config_from_huggingface(LLAMA, "mine")
    assert config_from_huggingface(newer, "mine") == older
    # As transformers does with a file that has both.
    other = {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}
    assert config_from_huggingface({**LLAMA, **other}, "mine") == older


@pytest.mark.parametrize(
    ("key", "legal"),
    [
        ("qwen2.5-7b", [1, 2, 4]),
        ("llama-3.1-70b", [1, 2, 4, 8, 16, 32, 64]),
        ("mixtral-8x7b", [1, 2, 4, 8, 16, 32]),
    ],
)
def test_only_sizes_that_divide_the_model_are_legal(key: str, legal: list[int]) -> None:
    config = load_config(key)
    refused = []
    for size in range(-1, config.num_attention_heads + 1):
        try:
            check_tensor_parallel(config, size)
        except ModelError:
            refused.append(size)

    assert sorted({*range(-1, config.num_attention_heads + 1)} - {*refused}) == legal


def test_the_experts_are_divided_instead_of_the_dense_layer() -> None:
    data = {"model_type": "qwen3_moe", **HUGGINGFACE["qwen3_moe"], "moe_intermediate_size": 33}

    with pytest.raises(ModelError, match="intermediate_size of an expert 33"):
        check_tensor_parallel(config_from_huggingface(data, "mine"), 2)
