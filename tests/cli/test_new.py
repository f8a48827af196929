"""``kbt new``: which files it writes, and that nothing else has to be edited. They are run in ``test_own_operators.py``."""

import json
import tomllib
from pathlib import Path

from projects import assert_one_line, contents, run_kbt

from kernels_bench_tools.cli.new import built_in_operators

ROOT = Path(__file__).parents[2]


def test_a_new_operator_is_one_module_and_one_folder(bare: Path) -> None:
    (bare / "pyproject.toml").write_text("[tool.kbt]\noperators = 'src/lib/ops'\n")
    before = contents(bare)

    (bare / "gather/impls").mkdir(parents=True)  # as a killed command leaves them
    (bare / f"gather/impls/.torch_gather.md.{'0' * 32}").write_text("---\n")
    made = run_kbt(bare, "new", "operator", "gather")
    mine = run_kbt(bare, "new", "implementation", "gather/mine")
    listed = json.loads(run_kbt(bare, "list", "gather", "--json").stdout)["implementations"]

    added = [
        "src/lib/ops/gather.py",
        "gather/index.md",
        "gather/impls/torch_gather.md",
        "gather/results/combined_results.md",
    ]
    assert made.stdout.splitlines()[:-1] == added
    assert contents(bare).keys() - before.keys() == {*added, "gather/impls/mine.md"}
    assert contents(bare).items() >= before.items()  # no registry
    assert made.stdout.endswith("kbt run gather/torch_gather\n")
    assert mine.returncode == run_kbt(bare, "check").returncode == 0
    assert [entry["implementation"] for entry in listed] == ["mine", "torch_gather"]
    for name in added[1:3]:
        assert "`src/lib/ops/gather.py`" in (bare / name).read_text()

    def cell(path: Path) -> list[str]:
        lines = path.read_text().partition("```python")[2].splitlines()
        return [line for line in lines if not line.startswith(("# exclude-newer", "# kernels-bench-tools ="))]

    # An operator whose title is its folder's name, as a new one's is; others say their title to combine().
    ours = cell(ROOT / "cross_entropy/results/combined_results.md")
    assert [line for line in cell(bare / added[3]) if line not in ours] == []


def test_the_folder_of_a_built_in_operator_is_created_unless_a_file_of_it_exists(bare: Path) -> None:
    (bare / "layer_norm").mkdir()
    (bare / "layer_norm" / "index.md").write_text("mine")
    taken = run_kbt(bare, "new", "implementation", "layer_norm/mine")
    assert_one_line(taken, "layer_norm/index.md: already exists")
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


def test_an_implementation_can_start_from_any_other(project: Path) -> None:
    done = run_kbt(project, "new", "implementation", "layer_norm/mine", "--from", "triton_layer_norm")

    text = (project / "layer_norm" / "impls" / "mine.md").read_text()
    assert done.returncode == 0, done.stderr
    assert "_layer_norm_in_chunks" in text
    assert "requires: [cuda]" in text.split("---")[1]
    assert run_kbt(project, "check").returncode == 0
