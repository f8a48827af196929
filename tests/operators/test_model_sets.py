"""Workload sets of models: what their modules are called with, as workloads of the operators; and those of suites."""

import pytest
from implementations import ROOT

from kernels_bench_tools.measure.operator import built_in_modules, find_operator
from kernels_bench_tools.models.replacement import ADAPTERS
from kernels_bench_tools.records.model import (
    DERIVED,
    OPERATORS,
    REPLACEABLE_OPERATORS,
    model_keys,
    read_model_tasks,
)
from kernels_bench_tools.results.suite import read_suite

KERNELS = {
    "rms_norm": ("RMSNorm",),
    "activation": ("SiluAndMul",),
    "rotary": ("RotaryEmbedding",),
    "flash_attn": ("FlashAttnPrefill", "FlashAttnDecode"),
    "matmul": ("Linear",),
    "grouped_gemm": ("MoEGroupedGemm",),
    "embedding": ("Embedding",),
    "kv_store": ("StoreKVCache",),
    "paged_attention": ("FlashAttnDecode",),
    "mlp": ("LlamaMLP",),
    "decoder_layer": ("LlamaDecoderLayer",),
    "causal_lm": ("LlamaForCausalLM",),
    "moe": ("FusedMoE",),
}
OF_SOME_MODELS = {"grouped_gemm", "moe", "mlp", "decoder_layer", "causal_lm"}
"""Mixtures of experts call the first two, other models the others."""
ONLY_TRANSFORMERS = {
    "causal_conv1d": {
        "falcon-mamba-7b": [
            "prefill-2048_B1_D8192_S2048_W4",
            "decode-1_B1_D8192_S5_W4",
            "decode-32_B32_D8192_S5_W4",
        ],
        "qwen3-next-80b-a3b": [
            "prefill-2048_B1_D8192_S2048_W4",
            "decode-1_B1_D8192_S5_W4",
            "decode-32_B32_D8192_S5_W4",
        ],
    },
    "selective_scan": {
        "falcon-mamba-7b": [
            "prefill-2048_Prefill_B1_D8192_S2048_N16",
            "decode-1_Step_B1_D8192_S1_N16",
            "decode-32_Step_B32_D8192_S1_N16",
        ]
    },
    "gated_delta_rule": {
        "qwen3-next-80b-a3b": [
            "prefill-2048_Prefill_B1_S2048_H32_K128_V128",
            "decode-1_Step_B1_S1_H32_K128_V128",
            "decode-32_Step_B32_S1_H32_K128_V128",
        ]
    },
}
"""Workloads of what models call of which only transformers has modules."""
MODELS = model_keys(DERIVED)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_model_set_has_a_workload_for_each_kernel_that_the_model_calls(name: str, model: str) -> None:
    called = [
        task
        for phase in read_model_tasks(model).phases
        for task in phase.tasks
        if task.module in KERNELS[name]
    ]

    assert len(find_operator(name).workload_sets.get(model, ())) == len(called)
    assert called or name in OF_SOME_MODELS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rms_norm", ["prefill-2048_AddRMS_B1_S2048_D4096", "prefill-2048_RMS_B1_S2048_D4096"]),
        ("activation", ["prefill-2048_SwiGLU_T2048_D14336"]),
        ("rotary", ["prefill-2048_B1_S2048_H32_KV8_D128"]),
        (
            "matmul",
            [
                f"prefill-2048_Linear_T2048_K{columns}_N{rows}"
                for columns, rows in (
                    (14336, 4096),
                    (4096, 28672),
                    (4096, 4096),
                    (4096, 6144),
                    (4096, 128256),
                )
            ],
        ),
        ("flash_attn", ["prefill-2048_Q2048_KV2048_H32_D128"]),
        ("embedding", ["prefill-2048_T2048_V128256_D4096"]),
        ("kv_store", ["prefill-2048_T2048_B1_KV8_D128_128x16"]),
        ("mlp", ["prefill-2048_T2048_D4096_I14336"]),
    ],
)
def test_shapes_of_llama_are_those_of_its_configuration(name: str, expected: list[str]) -> None:
    workloads = find_operator(name).workloads("llama-3.1-8b")

    prefill = [workload for workload in workloads if "prefill" in workload.name]
    assert [workload.name.removeprefix("llama-3.1-8b_") for workload in prefill] == expected
    assert {workload.dtype for workload in workloads} == {"bfloat16"}


@pytest.mark.parametrize("name", ONLY_TRANSFORMERS)
def test_shapes_of_recurrent_layers_are_those_of_transformers_models(name: str) -> None:
    operator = find_operator(name)
    sets = {
        model: [workload.name.removeprefix(f"{model}_") for workload in operator.workload_sets[model]]
        for model in ONLY_TRANSFORMERS[name]
    }

    assert sets == ONLY_TRANSFORMERS[name]


@pytest.mark.parametrize("name", [*built_in_modules()])
def test_workloads_of_all_sets_have_unique_names_and_every_axis(name: str) -> None:
    operator = find_operator(name)
    workloads = [workload for found in operator.workload_sets.values() for workload in found]
    names = [workload.name for workload in workloads]

    assert len(names) == len(set(names))
    assert {tuple(workload.axes) for workload in workloads} == {operator.axes}


def test_the_command_knows_which_modules_an_effect_can_be_measured_of() -> None:
    assert set(ADAPTERS) == REPLACEABLE_OPERATORS
    assert KERNELS.keys() | ONLY_TRANSFORMERS.keys() == OPERATORS


SUITE = read_suite(ROOT / "suites" / "trainscale.toml")


def test_each_small_row_is_a_workload_of_its_set() -> None:
    for kernel in SUITE.small:
        names = {one.name for one in find_operator(kernel.operator).workloads(SUITE.small_workloads)}
        assert kernel.workload in names
    assert {kernel.operator for kernel in SUITE.small} == {kernel.operator for kernel in SUITE.kernel}


def test_the_suite_has_every_workload_of_its_set() -> None:
    rows = [(kernel.operator, kernel.workload) for kernel in SUITE.kernel]
    known = {
        (operator, workload.name)
        for operator in SUITE.operators
        for workload in find_operator(operator).workloads(SUITE.workloads)
    }

    assert set(rows) == known
    assert len(rows) == len(known)
    assert len({kernel.name for kernel in SUITE.kernel}) == len(rows)


def test_only_a_suite_measures_its_workloads_in_the_type_that_it_names() -> None:
    types = {"fp8_quant": "float32"}
    for operator in map(find_operator, SUITE.operators):
        found = {workload.dtype for workload in operator.workloads(SUITE.workloads)}
        assert found == {types.get(operator.name, "float16")}
        assert SUITE.workloads not in operator.default_sets("cuda")
