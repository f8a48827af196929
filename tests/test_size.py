"""The size of the package and of its tests: growth is a decision that somebody makes in a diff of this table."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SLACK = 100
"""Lines that an entry may be above the folder's, so that one that shrinks gives its lines back."""

LINES = {
    "kernels_bench_tools": 41_390,
    "kernels_bench_tools/chart": 690,
    "kernels_bench_tools/cli": 4_130,
    "kernels_bench_tools/cluster": 590,
    "kernels_bench_tools/hub": 1_580,
    "kernels_bench_tools/measure": 8_000,
    "kernels_bench_tools/models": 3_520,
    "kernels_bench_tools/notebooks": 2_040,
    "kernels_bench_tools/operators": 3_620,
    "kernels_bench_tools/records": 2_830,
    "kernels_bench_tools/report": 2_780,
    "kernels_bench_tools/results": 4_590,
    "kernels_bench_tools/run": 4_990,
    "kernels_bench_tools/selfcheck": 600,
    "kernels_bench_tools/serve": 220,
    "tests": 30_500,
}
"""The most lines of Python in a folder, with all that is inside."""


def lines_of(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


@pytest.mark.parametrize("folder", LINES)
def test_a_folder_is_as_large_as_the_table_says(folder: str) -> None:
    lines = lines_of(ROOT / folder)

    assert lines <= LINES[folder], f"{folder} has {lines} lines. Shorten it, or raise its entry and say why."
    assert lines > LINES[folder] - SLACK, f"{folder} has only {lines} lines. Lower its entry."


def test_every_folder_of_the_package_has_an_entry() -> None:
    package = ROOT / "kernels_bench_tools"
    folders = {path.parent for path in package.rglob("*.py")} - {package}
    rooms = {f"kernels_bench_tools/{folder.relative_to(package).parts[0]}" for folder in folders}

    assert rooms | {"kernels_bench_tools", "tests"} == LINES.keys()
