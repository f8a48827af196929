"""The classes of models use lower levels and their own only; which they use is read from their code."""

from kernels_bench_tools.models.baseline import L1, L2, L3, L4
from kernels_bench_tools.results.models import imports_of_models

USES = {module.class_name: {one.class_name for one in used} for module, used in imports_of_models().items()}


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
