"""``kbt new``: which files it writes, and that nothing else has to be edited. They are run in ``test_own_operators.py``."""

import json
import os
import shutil
import tomllib
from pathlib import Path

from projects import Kbt, assert_one_line, run_kbt

from kernels_bench_tools.cli.new import built_in_operators

ROOT = Path(__file__).parents[2]
NEW_FILES = {
    "kernels_bench_tools/operators/example_operator.py",
    "example_operator/index.md",
    "example_operator/impls/torch_example_operator.md",
    "example_operator/results/combined_results.md",
}


def files(project: Path) -> dict[str, bytes]:
    """Every file that an author could have written or changed."""
    hidden = ("site", ".kbt", "__pycache__")
    walked = os.walk(project, followlinks=True)  # the package may be a link
    found = (Path(folder, name) for folder, _, names in walked for name in names)
    names = {path.relative_to(project).as_posix(): path for path in found}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if not any(part in hidden for part in Path(name).parts)
    }


def test_a_new_operator_is_one_module_and_one_folder(project: Path, kbt: Kbt) -> None:
    package = project / "kernels_bench_tools"
    shared = package.resolve()
    package.unlink()
    shutil.copytree(shared, package)
    before = files(project)

    made = kbt("new", "operator", "example_operator")
    added = {name for name in files(project) if name not in before}
    mine = kbt("new", "implementation", "example_operator/mine")
    checked = kbt("check")
    listed = json.loads(kbt("list", "--json").stdout)["implementations"]

    assert made.returncode == mine.returncode == checked.returncode == 0, made.stderr + checked.stderr
    assert set(made.stdout.splitlines()[:-1]) == added == NEW_FILES
    assert made.stdout.splitlines()[-1].endswith("kbt run example_operator/torch_example_operator")
    assert {name: text for name, text in files(project).items() if name in before} == before  # no registry
    # The front page is this repository's, and names its other operators.
    assert {line.partition(": ![")[0] for line in checked.stderr.splitlines()} == {"note: index.md"}
    assert {entry["implementation"] for entry in listed if entry["operator"] == "example_operator"} == {
        "torch_example_operator",
        "mine",
    }

    def cell(path: Path) -> list[str]:
        lines = path.read_text().splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("```python"))
        return [line for line in lines[start:] if "exclude-newer" not in line]

    name = Path("results") / "combined_results.md"
    # An operator whose title is its folder's name, as a new one's is; others say their title to combine().
    assert cell(project / "example_operator" / name) == cell(ROOT / "cross_entropy" / name)


def test_a_new_operator_of_another_project_is_a_module_in_its_operators_folder(bare: Path) -> None:
    (bare / "pyproject.toml").write_text("[tool.kbt]\noperators = 'src/lib/ops'\n")

    made = run_kbt(bare, "new", "operator", "gather")

    assert made.stdout.splitlines()[:-1] == [
        "src/lib/ops/gather.py",
        "gather/index.md",
        "gather/impls/torch_gather.md",
        "gather/results/combined_results.md",
    ]
    for name in made.stdout.splitlines()[1:3]:
        assert "`src/lib/ops/gather.py`" in (bare / name).read_text()
    assert run_kbt(bare, "check").returncode == 0


def test_the_folder_of_a_built_in_operator_is_created_unless_a_file_of_it_exists(bare: Path) -> None:
    (bare / "layer_norm").mkdir()
    (bare / "layer_norm" / "index.md").write_text("mine")
    taken = run_kbt(bare, "new", "implementation", "layer_norm/mine")
    assert_one_line(taken, "layer_norm/index.md: exists already")
    (bare / "layer_norm" / "index.md").unlink()

    made = run_kbt(bare, "new", "implementation", "layer_norm/mine")
    again = run_kbt(bare, "new", "implementation", "layer_norm/second")

    assert [line for line in made.stdout.splitlines() if line.endswith(".md")] == [
        "layer_norm/index.md",
        "layer_norm/impls/torch_layer_norm.md",
        "layer_norm/results/combined_results.md",
        "layer_norm/impls/mine.md",
    ]
    assert again.stdout.splitlines()[0] == "layer_norm/impls/second.md"
    assert run_kbt(bare, "check").returncode == 0


def test_the_wheel_has_the_folder_of_every_operator() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]

    names = built_in_operators()

    assert wheel["sources"] == {name: f"kernels_bench_tools/cli/starters/{name}" for name in names}
    assert wheel["only-include"] == ["kernels_bench_tools", *names]


def test_an_implementation_can_start_from_any_other(project: Path, kbt: Kbt) -> None:
    done = kbt("new", "implementation", "layer_norm/mine", "--from", "triton_layer_norm")

    text = (project / "layer_norm" / "impls" / "mine.md").read_text()
    assert done.returncode == 0, done.stderr
    assert "_layer_norm_in_chunks" in text
    assert "requires: [cuda]" in text.split("---")[1]
    assert kbt("check").returncode == 0
