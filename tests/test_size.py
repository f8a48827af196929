"""The size of the package, of its tests and of its functions: growth is a decision that somebody makes in a diff here."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = {"kernels_bench_tools": 43_824, "tests": 32_817}
"""The most lines of Python in a folder, with all that is inside."""
LONGEST = 60
"""Lines of a function, with its signature and docstring."""
LONGER = {
    "cli/effect.py": {"effect"},
    "cluster/shipment.py": {"run_shipment"},
    "measure/harness.py": {"run_benchmark"},
    "measure/task.py": {"measure_task"},
    "measure/timing/measure.py": {"_measure_cuda"},
    "models/derive.py": {"_workloads"},
    "report/site.py": {"_renderers", "publish"},
    "run/build.py": {"build"},
}
"""Functions that may be longer, by module: their parts would only be entered in turn."""


@pytest.mark.parametrize("folder", LINES)
def test_the_package_and_its_tests_are_within_their_bounds(folder: str) -> None:
    lines = sum(len(path.read_bytes().splitlines()) for path in (ROOT / folder).rglob("*.py"))

    assert lines <= LINES[folder], f"{folder} has {lines} lines. Shorten it, or raise its bound and say why."


def test_a_function_has_at_most_60_lines_unless_it_is_named() -> None:
    package, longer = ROOT / "kernels_bench_tools", dict[str, set[str]]()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST:
                longer.setdefault(path.relative_to(package).as_posix(), set()).add(node.name)

    assert longer == LONGER
