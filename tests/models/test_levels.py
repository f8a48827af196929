"""The modules of models import lower levels and their own only, and a module's imports are those of its class."""

import ast
import re
from pathlib import Path

import grimp
import pytest

from kernels_bench_tools.models import baseline

ROOT = baseline.__name__
FILES = sorted(Path(baseline.__file__).parent.rglob("L*/**/*.py"))


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("kernels_bench_tools", cache_dir=None)


def level(module: str) -> int:
    """Return 1 to 4, 0 for what is below the levels, 5 for what constructs models."""
    found = re.match(rf"{re.escape(ROOT)}\.L(\d)\b", module)
    if found:
        return int(found[1])
    return 5 if module == f"{ROOT}.build" else 0


def test_no_module_imports_a_higher_level(graph: grimp.ImportGraph) -> None:
    modules = graph.find_descendants(ROOT)
    upward = [
        f"{module} imports {imported}"
        for module in sorted(modules)
        for imported in graph.find_modules_directly_imported_by(module)
        if level(imported) > level(module)
    ]

    assert {level(module) for module in modules} == {0, 1, 2, 3, 4, 5}
    assert upward == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_module_defines_one_class(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]

    assert len(classes) == (0 if path.name == "__init__.py" else 1)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("L4.llama", "L3.llama_decoder"),
        ("L3.llama_decoder", "L2.attention"),
        ("L2.attention", "L1.store_kvcache"),
        ("L2.attention", "L1.flash_attn_prefill"),
        ("L2.attention", "L1.flash_attn_decode"),
        ("L2.attention", "L2.parallel_linear.qkv"),
        ("L2.attention", "L2.parallel_linear.row"),
        ("L2.parallel_linear.qkv", "L1.linear"),
        ("L2.parallel_linear.row", "L1.allreduce"),
        ("L3.llama_decoder", "L2.llama_mlp"),
        ("L2.llama_mlp", "L1.silu_and_mul"),
        ("L3.llama_decoder", "L1.rms_norm"),
    ],
)
def test_a_model_reaches_what_the_hierarchy_says(
    graph: grimp.ImportGraph, importer: str, imported: str
) -> None:
    assert graph.chain_exists(f"{ROOT}.{importer}", f"{ROOT}.{imported}")


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("L4.llama", "L2.fused_moe"),
        ("L4.mixtral", "L2.llama_mlp"),
        ("L4.mixtral", "L2.qwen3_moe"),
        ("L2.parallel_linear.qkv", "L1.allreduce"),
    ],
)
def test_a_model_does_not_reach_what_it_does_not_use(
    graph: grimp.ImportGraph, importer: str, imported: str
) -> None:
    assert not graph.chain_exists(f"{ROOT}.{importer}", f"{ROOT}.{imported}")
