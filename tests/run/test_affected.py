"""Which notebooks the changes since a revision affect."""

import pytest
from projects import commit_all
from workspace import MEASURING, WRITE, with_this_package

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.run.plan import find_affected

X, Y, C = "op/impls/x.md:a", "op/impls/y.md:a", "op/results/c.md:combine"
HEADER = with_this_package("../../../..")


@pytest.fixture
def operator(workspace):
    """Two implementations, of which one measures with this package, and their combine cell, committed."""
    workspace.write("kernels_bench_tools/__init__.py", "")
    workspace.write("kernels_bench_tools/operators/op.py", "")
    workspace.write("kernels_bench_tools/operators/other.py", "")
    workspace.write("op/results/records/old.jsonl", "{}\n")
    workspace.write(".gitignore", "*.log\n.kbt/\n")
    workspace.cell("op/impls/x.md", HEADER + WRITE, MEASURING, "title: X")
    workspace.cell(
        "op/impls/y.md", "# get_kernel('a/b@1')\n" + WRITE, MEASURING, "title: Y\nrequires: [cuda]"
    )
    workspace.cell("op/results/c.md", "print(1)", "id=combine needs=../impls/*.md:a,./records/*.jsonl")
    workspace.cell("z.md", "print(1)")
    commit_all(workspace.root)
    return workspace


def affected(workspace, revision="HEAD", *targets, environment="uv"):
    found = find_affected(workspace.project, targets, revision, environment)
    return {f"{one.notebook}:{cell}": what for one in found for cell, what in one.changed.items()}


def test_an_edited_cell_affects_its_notebook_and_its_dependents(operator):
    operator.cell("op/impls/x.md", HEADER + WRITE + "pass", MEASURING, "title: X")
    expected = {X: ["code"], C: [f"upstream {X}"]}
    assert affected(operator) == expected
    commit_all(operator.root)

    assert affected(operator) == {}
    assert affected(operator, "HEAD~1") == expected


def test_prose_and_files_that_no_cell_reads_or_git_ignores_affect_nothing_and_nothing_is_written(operator):
    operator.write("op/results/records/build.log", "x")
    operator.cell("op/results/c.md", "print(1)", "id=combine needs=../impls/*.md:a,./records/*")
    commit_all(operator.root)
    operator.write("op/results/records/more.log", "x")
    operator.cell("op/impls/x.md", HEADER + WRITE, MEASURING, "title: X", prose="Other words.")
    operator.write("kernels_bench_tools/operators/other.py", "x = 1")
    operator.write("kernels_bench_tools/report/site.py", "")
    operator.write("README.md", "words")
    before = {path: path.stat().st_mtime_ns for path in operator.root.rglob("*")}

    assert affected(operator) == {}
    assert {path: path.stat().st_mtime_ns for path in operator.root.rglob("*")} == before


def test_a_lock_a_new_data_file_and_a_removed_one_affect_their_readers(operator):
    operator.write("kernels.lock", "[]")
    assert affected(operator) == {Y: ["kernels.lock"], C: [f"upstream {Y}"]}
    (operator.root / "kernels.lock").unlink()
    operator.write("op/results/records/new.jsonl", "{}\n")
    assert affected(operator) == {C: ["file op/results/records/new.jsonl"]}
    (operator.root / "op/results/records/new.jsonl").unlink()
    (operator.root / "op/results/records/old.jsonl").unlink()

    assert affected(operator) == {C: ["file op/results/records/old.jsonl"]}


def test_new_and_removed_notebooks_affect_the_combine_cell(operator):
    operator.cell("op/impls/new.md", WRITE, MEASURING)
    assert affected(operator) == {"op/impls/new.md:a": ["name"], C: ["upstream op/impls/new.md:a"]}
    (operator.root / "op/impls/new.md").unlink()
    (operator.root / "op/impls/x.md").unlink()

    assert affected(operator) == {C: [f"upstream {X}"]}


def test_a_project_in_a_folder_of_its_repository_is_compared_with_itself(tmp_path, operator):
    top = tmp_path / "top"
    top.mkdir()
    (operator.root / ".git").rename(tmp_path / "old.git")
    operator.root = operator.root.rename(top / "benches")
    commit_all(top)
    operator.cell("z.md", "print(2)")

    assert affected(operator) == {"z.md:a": ["code"]}


@pytest.mark.parametrize("revision", ["nowhere", "--all", "HEAD:z.md"])
def test_an_unknown_revision_is_an_error(operator, revision):
    with pytest.raises(ProjectError, match="there is no such commit here") as caught:
        affected(operator, revision)

    assert "fetch-depth: 0" in str(caught.value)
