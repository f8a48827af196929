"""``kbt new``: what it writes runs as it is, and joins the report by existing."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kernels_bench_tools.schema.summary import Summary

ROOT = Path(__file__).parents[2]
Kbt = Callable[..., subprocess.CompletedProcess[str]]
SMOKE = ("--env", "current", "--workloads", "smoke")
NEW_FILES = {
    "kernels_bench_tools/operators/softmax.py",
    "softmax/index.md",
    "softmax/impls/torch_softmax.md",
    "softmax/results/combined_results.md",
}


def files(project: Path) -> dict[str, bytes]:
    """Every file that an author could have written or changed."""
    hidden = ("site", ".kbt", "__pycache__")
    found = (path for path in project.rglob("*") if path.is_file())
    names = {path.relative_to(project).as_posix(): path for path in found}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if not any(part in hidden for part in Path(name).parts)
    }


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_a_new_operator_is_one_module_and_one_folder(project: Path, kbt: Kbt) -> None:
    before = files(project)

    made = kbt("new", "operator", "softmax")
    added = {name for name in files(project) if name not in before}
    mine = kbt("new", "implementation", "softmax/mine")
    shown = kbt("run", "softmax/mine", *SMOKE, "--json")
    checked = kbt("check")
    listed = json.loads(kbt("list", "--json").stdout)["implementations"]
    built = kbt("build", "softmax", *SMOKE)

    assert made.returncode == mine.returncode == checked.returncode == 0, made.stderr + checked.stderr
    assert set(made.stdout.splitlines()[:-1]) == added == NEW_FILES
    assert made.stdout.splitlines()[-1].endswith("kbt run softmax/torch_softmax")
    assert {name: text for name, text in files(project).items() if name in before} == before  # no registry
    assert " 0 problems, 0 notes" in checked.stdout

    (cell,) = json.loads(shown.stdout)
    assert cell["baseline"] == "PyTorch Softmax"
    assert [row["status"] for row in cell["rows"]] == ["ok"]
    assert {entry["implementation"] for entry in listed if entry["operator"] == "softmax"} == {
        "torch_softmax",
        "mine",
    }

    assert built.returncode == 0, built.stderr
    page = (project / "site" / "softmax" / "index.html").read_text()
    assert "Mine" in page
    summary = msgspec.json.decode(
        (project / "site/softmax/results/artifacts/combine/summary.json").read_bytes(), type=Summary
    )
    (device,) = summary.devices
    assert device.baseline == "torch_softmax"
    assert {row.implementation: row.status for row in device.rows} == {"torch_softmax": "ok", "mine": "ok"}


def test_the_combined_results_of_a_new_operator_are_those_of_every_operator(project: Path, kbt: Kbt) -> None:
    kbt("new", "operator", "softmax")

    def cell(path: Path) -> list[str]:
        lines = path.read_text().splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("```python"))
        return [line for line in lines[start:] if "exclude-newer" not in line]

    name = Path("results") / "combined_results.md"
    # An operator whose title is its folder's name, as a new one's is; others say their title to combine().
    assert cell(project / "softmax" / name) == cell(ROOT / "cross_entropy" / name)


def test_a_wrong_implementation_of_a_new_operator_is_incorrect(project: Path, kbt: Kbt) -> None:
    kbt("new", "operator", "softmax")
    path = project / "softmax" / "impls" / "torch_softmax.md"
    path.write_text(path.read_text().replace("return 2 * x", "return 2.001 * x"))

    (cell,) = json.loads(kbt("run", "softmax/torch_softmax", *SMOKE, "--json").stdout)

    assert [row["status"] for row in cell["rows"]] == ["incorrect"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("layer_norm", ("layer_norm.py: exists already", "another name")),
        ("templates", ("templates: exists already",)),
        ("Softmax", ("Softmax: is not a name", "lower-case")),
        ("soft-max", ("soft-max: is not a name", "lower-case")),
        ("../softmax", ("is not a name",)),
        ("", ("'': is not a name",)),
        ("lambda", ("lambda: is reserved",)),
        ("site", ("site: is reserved",)),
    ],
)
def test_a_name_that_cannot_be_an_operator_is_one_line_and_writes_nothing(
    project: Path, kbt: Kbt, name: str, parts: tuple[str, ...]
) -> None:
    before = files(project)

    assert_one_line(kbt("new", "operator", name), *parts)

    assert files(project) == before


def test_an_operator_needs_a_checkout_of_the_package(bare: Path, kbt_in: Kbt) -> None:
    before = files(bare)

    done = kbt_in(bare, "new", "operator", "gather")

    assert_one_line(done, "operators/gather.py", "does not contain the package", "kbt new operator gather")
    assert files(bare) == before


def test_help_of_new_operator_lists_the_files(bare: Path, kbt_in: Kbt) -> None:
    told = " ".join(kbt_in(bare, "new", "operator", "--help").stdout.replace("│", " ").split())

    for part in ("kernels_bench_tools/operators/NAME.py", "baseline", "softmax", "2x"):
        assert part in told


def test_an_implementation_can_start_from_any_other(project: Path, kbt: Kbt) -> None:
    done = kbt("new", "implementation", "layer_norm/mine", "--from", "triton_layer_norm")

    text = (project / "layer_norm" / "impls" / "mine.md").read_text()
    assert done.returncode == 0, done.stderr
    assert "_layer_norm_in_chunks" in text
    assert "requires: [cuda]" in text.split("---")[1]
    assert kbt("check").returncode == 0


def test_starting_from_an_implementation_that_is_not_there_is_one_line(bare: Path, kbt_in: Kbt) -> None:
    done = kbt_in(bare, "new", "implementation", "softmax/mine", "--from", "plan")

    assert_one_line(done, "--from plan", "is not an implementation of softmax", "'plain'")
