"""Parameters and calls of the production models, without memory for their weights."""

from collections import Counter

import pytest

from kernels_bench_tools.models.config import ModelConfig, load_config, splitting_problems
from kernels_bench_tools.models.derive import derive
from kernels_bench_tools.records.model import CONFIGS, RANKS, derived_folder, model_keys, read_model_tasks

PARAMETERS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}
ATTENTION = {
    "decode": ("FlashAttnDecode",),
    "prefill": ("FlashAttnPrefill",),
    "mixed": ("FlashAttnDecode", "FlashAttnPrefill"),
}


def expected_calls(config: ModelConfig, phase: str, size: int = 1) -> dict[str, int]:
    layers, experts = config.num_hidden_layers, bool(config.experts)
    calls = {
        "RMSNorm": layers * (4 if config.qk_norm else 2) + 1,
        "Linear": layers * (3 if experts else 4) + 1,
        "Embedding": 1,
        **dict.fromkeys(("RotaryEmbedding", "StoreKVCache", "SiluAndMul", *ATTENTION[phase]), layers),
    }
    if experts:
        calls |= dict.fromkeys(("TopKSoftmax", "MoEAlign", "MoESum"), layers) | {"MoEGroupedGemm": 2 * layers}
    return calls | ({"AllReduce": 2 * layers + 1} if size > 1 else {})


def kernel_calls(phase) -> Counter[str]:
    calls: Counter[str] = Counter()
    for task in phase.tasks:
        calls[task.module] += task.calls if task.level == 1 else 0
    return +calls


@pytest.mark.parametrize("key", model_keys(CONFIGS))
def test_the_committed_tasks_are_those_of_the_modules_with_the_published_parameters_and_calls(
    key: str,
) -> None:
    config, found = load_config(key), derive(key)

    assert found == read_model_tasks(key), "python -m kernels_bench_tools.models.derive"
    assert found.parameters == PARAMETERS[key]
    for phase in found.phases:
        calls = kernel_calls(phase)
        assert calls == expected_calls(config, phase.name.partition("-")[0])
        assert [task.calls for task in phase.tasks if task.level == 4] == [1, 1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("key", "calls"),
    [
        ("falcon-mamba-7b", {"causal_conv1d": 64, "selective_scan": 64, "rms_norm": 65}),
        (
            "qwen3-next-80b-a3b",
            {"causal_conv1d": 36, "gated_delta_rule": 36, "rms_norm": 36, "flash_attn": 12, "activation": 48},
        ),
    ],
)
def test_the_committed_tasks_of_a_model_of_transformers_have_the_calls_that_an_effect_replaces(
    key: str, calls: dict[str, int]
) -> None:
    found = derive(key)

    assert found == read_model_tasks(key), "python -m kernels_bench_tools.models.derive"
    for phase in found.phases:
        replaced: Counter[str] = Counter()
        for task in phase.tasks:
            if ": " in task.module:
                replaced[task.module.partition(": ")[2]] += task.calls
        assert replaced == calls


@pytest.mark.parametrize(("key", "ranks"), [("llama-3.2-1b", 8), ("qwen3-8b", 2)])
def test_the_committed_tasks_of_a_rank_are_those_of_its_modules(key: str, ranks: int) -> None:
    assert derive(key, ranks) == read_model_tasks(key, ranks), "python -m kernels_bench_tools.models.derive"


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_tasks_of_ranks_are_committed_where_a_model_can_be_split_and_only_add_sums(ranks: int) -> None:
    split = [key for key in model_keys(CONFIGS) if not splitting_problems(load_config(key), ranks)]

    assert model_keys(derived_folder(ranks)) == split
    for key in split:
        config = load_config(key)
        for phase in read_model_tasks(key, ranks).phases:
            assert kernel_calls(phase) == expected_calls(config, phase.name.partition("-")[0], ranks)


@pytest.mark.parametrize(
    ("key", "module", "inputs", "calls", "path"),
    [
        (
            "llama-3.1-8b",
            "Linear",
            ["x bfloat16[2048, 4096]", "weight bfloat16[28672, 4096]"],
            32,
            "model.layers.*.mlp.gate_up_proj.linear",
        ),
        ("llama-3.1-8b", "RMSNorm", ["x bfloat16[2048, 4096]"], 1, "model.layers.*.input_layernorm"),
        ("qwen3-8b", "RMSNorm", ["x bfloat16[2048, 8, 128]"], 36, "model.layers.*.self_attn.k_norm"),
    ],
)
def test_a_task_has_the_shapes_of_its_inputs_and_where_it_is_called(key, module, inputs, calls, path) -> None:
    tasks = read_model_tasks(key).phase("prefill-2048").tasks

    [found] = [task for task in tasks if (task.module, task.inputs) == (module, inputs)]
    assert (found.level, found.calls, found.paths) == (1, calls, {path: calls})
