"""The classes of models use lower levels and their own only; which they use is read from their code."""

import pytest

from kernels_bench_tools.models.baseline import L1, L2, L3, L4
from kernels_bench_tools.results.models import imports_of_models

USES = {module.class_name: {one.class_name for one in used} for module, used in imports_of_models().items()}


def reached(name: str) -> set[str]:
    return USES[name].union(*map(reached, USES[name]))


def test_each_class_of_a_level_is_in_the_graph_and_uses_no_higher_level() -> None:
    levels = {
        name: level
        for level, module in enumerate((L1, L2, L3, L4), 1)
        for name, one in vars(module).items()
        if getattr(one, "__module__", "") == module.__name__ and isinstance(one, type)
    }

    assert {module.class_name: module.level for module in imports_of_models()} == levels
    for name, used in USES.items():
        assert all(levels[one] <= levels[name] for one in used), name


@pytest.mark.parametrize(
    ("name", "used", "unused"),
    [
        ("LlamaForCausalLM", {"LlamaDecoderLayer", "LlamaMLP", "RMSNorm"}, {"FusedMoE", "TopKSoftmax"}),
        ("MixtralForCausalLM", {"MixtralMoE", "FusedMoE"}, {"LlamaMLP", "Qwen3MoeSparseMoeBlock"}),
        ("LlamaDecoderLayer", {"LlamaAttention", "LlamaMLP", "RMSNorm"}, {"MixtralMoE"}),
        (
            "LlamaAttention",
            {"StoreKVCache", "FlashAttnPrefill", "FlashAttnDecode", "AllReduce"},
            {"SiluAndMul"},
        ),
        ("QKVParallelLinear", {"ColumnParallelLinear", "Linear"}, {"AllReduce"}),
        ("RowParallelLinear", {"Linear", "AllReduce"}, {"ColumnParallelLinear"}),
    ],
)
def test_a_class_reaches_what_the_hierarchy_says(name: str, used: set[str], unused: set[str]) -> None:
    assert reached(name) >= used
    assert not reached(name) & unused
