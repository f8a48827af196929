"""What a build would run, and why, and which notebooks the changes since a revision affect; nothing runs."""

import shutil

import pytest
from projects import commit_all
from workspace import MEASURING, WRITE, build_options, with_this_package

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.records.device import cuda_device
from kernels_bench_tools.run import plan as staleness
from kernels_bench_tools.run.plan import PlannedAction, find_affected, plan_build

X, Y, C = "op/impls/x.md:a", "op/impls/y.md:a", "op/results/c.md:combine"
HEADER = with_this_package("../../../..")


def combine(workspace, needs="../impls/*.md:a,./records/*.jsonl"):
    workspace.cell("op/results/c.md", "print(1)", f"id=combine needs={needs}")


@pytest.fixture
def operator(workspace):
    """Two implementations, of which one measures with this package, and their combine cell."""
    for module in ("__init__", "operators/op", "operators/other"):
        workspace.write(f"kernels_bench_tools/{module}.py", "")
    workspace.write("op/results/records/old.jsonl", "{}\n")
    workspace.write(".gitignore", "*.log\n.kbt/\n")
    workspace.cell("op/impls/x.md", HEADER + WRITE, MEASURING, "title: X")
    workspace.cell("op/impls/y.md", "# get_kernel('a/b@1')\n" + WRITE, MEASURING, "title: Y")
    combine(workspace)
    return workspace


@pytest.fixture
def built(operator):
    operator.build()
    return operator


@pytest.fixture
def committed(operator):
    commit_all(operator.root)
    return operator


def plan(workspace, *targets, **options):
    """The cells that are not unchanged: action, reason, changed, upstream."""
    chosen = build_options(**{"environment": "current", "processes": 1} | options)
    cells = plan_build(workspace.project, targets, chosen)
    return {
        cell.cell: (cell.action, cell.reason, cell.changed, cell.upstream)
        for cell in cells
        if cell.action is not PlannedAction.UNCHANGED
    }


def run(*changed, reason=""):
    return (PlannedAction.RUN, reason, list(changed), [])


def may(*upstream, changed=(), reason=""):
    return (PlannedAction.MAY_RUN, reason, list(changed), list(upstream))


def test_changed_code_header_and_outputs_are_named(built):
    built.cell("op/impls/x.md", HEADER + WRITE + "pass", MEASURING, "title: X")
    assert plan(built) == {X: run("code"), C: may(X)}
    built.cell("op/impls/x.md", HEADER.replace("']", "', 'a']") + WRITE, MEASURING, "title: X")
    assert plan(built) == {X: run("header"), C: may(X)}
    built.cell("op/impls/x.md", HEADER + WRITE, f"{MEASURING},*.txt", "title: X")
    assert plan(built) == {X: run("outputs"), C: may(X)}


def test_a_changed_source_data_file_and_lock_are_named(built):
    built.write("kernels_bench_tools/operators/op.py", "x = 1")
    built.write("kernels.lock", "[]")
    built.write("op/results/records/old.jsonl", "{} \n")

    assert plan(built) == {
        X: run("source of kernels-bench-tools"),
        Y: run("kernels.lock"),
        C: may(X, Y, changed=["file op/results/records/old.jsonl"]),
    }


def test_changed_workloads_mode_and_processes_are_named(built):
    assert plan(built, workloads="smoke") == {X: run("workloads"), Y: run("workloads"), C: may(X, Y)}
    assert plan(built, X, mode="bwd") == {X: run("mode")}
    assert plan(built, X, sustained=True) == {X: run("sustained")}
    assert plan(built, X, processes=2) == {X: run("processes")}


def test_a_changed_device_and_environment_are_named(built, monkeypatch):
    def everything(changed):
        return {X: run(changed), Y: run(changed), C: may(X, Y, changed=[changed])}

    assert plan(built, environment="uv") == everything("environment")
    monkeypatch.setattr(staleness, "current_device", lambda: cuda_device("NVIDIA H200"))

    assert plan(built) == everything("device")


def test_a_damaged_and_a_removed_result_are_reported(built):
    path = built.root / built.result("op/impls/x.md").artifacts["op.jsonl"]
    path.write_text("tampered")
    assert plan(built)[X] == run(reason="damaged entry (artifacts/op.jsonl was changed)")
    shutil.rmtree(built.root / ".kbt/cache")

    assert plan(built)[X] == run(reason="its result is no longer stored")


def test_an_unsupported_cell_is_neither_stale_nor_unchanged(workspace, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    workspace.cell("op/impls/x.md", WRITE, MEASURING, "requires: [cuda]")
    combine(workspace, "../impls/*.md:a")
    action, reason, _, _ = plan(workspace)[X]
    assert action is PlannedAction.UNSUPPORTED
    assert reason.startswith("needs a CUDA device")
    workspace.build()

    assert plan(workspace) == {}


def test_a_plan_lists_the_cells_that_the_build_then_runs_and_writes_nothing(built):
    built.cell("op/impls/x.md", HEADER + WRITE + "pass", MEASURING, "title: X")
    built.write("op/results/records/new.jsonl", "{}\n")
    before = {path: path.stat().st_mtime_ns for path in built.root.rglob("*")}
    planned = plan(built)

    assert {path: path.stat().st_mtime_ns for path in built.root.rglob("*")} == before
    assert planned == {X: run("code"), C: may(X, changed=["file op/results/records/new.jsonl"])}
    assert built.build().started == list(planned)


def affected(workspace, revision="HEAD", *targets, environment="uv"):
    found = find_affected(workspace.project, targets, revision, environment)
    return {f"{one.notebook}:{cell}": what for one in found for cell, what in one.changed.items()}


def test_an_edited_cell_affects_its_notebook_and_its_dependents(committed):
    committed.cell("op/impls/x.md", HEADER + WRITE + "pass", MEASURING, "title: X")
    expected = {X: ["code"], C: [f"upstream {X}"]}
    assert affected(committed) == expected
    commit_all(committed.root)

    assert affected(committed) == {}
    assert affected(committed, "HEAD~1") == expected


def test_prose_and_files_that_no_cell_reads_or_git_ignores_affect_nothing_and_nothing_is_written(committed):
    committed.write("op/results/records/build.log", "x")
    combine(committed, "../impls/*.md:a,./records/*")
    commit_all(committed.root)
    committed.write("op/results/records/more.log", "x")
    committed.cell("op/impls/x.md", HEADER + WRITE, MEASURING, "title: X", prose="Other words.")
    committed.write("kernels_bench_tools/operators/other.py", "x = 1")
    committed.write("kernels_bench_tools/report/site.py", "")
    committed.write("README.md", "words")
    before = {path: path.stat().st_mtime_ns for path in committed.root.rglob("*")}

    assert affected(committed) == {}
    assert {path: path.stat().st_mtime_ns for path in committed.root.rglob("*")} == before


def test_a_lock_a_new_data_file_and_a_removed_one_affect_their_readers(committed):
    committed.write("kernels.lock", "[]")
    assert affected(committed) == {Y: ["kernels.lock"], C: [f"upstream {Y}"]}
    (committed.root / "kernels.lock").unlink()
    committed.write("op/results/records/new.jsonl", "{}\n")
    assert affected(committed) == {C: ["file op/results/records/new.jsonl"]}
    (committed.root / "op/results/records/new.jsonl").unlink()
    (committed.root / "op/results/records/old.jsonl").unlink()

    assert affected(committed) == {C: ["file op/results/records/old.jsonl"]}


def test_new_and_removed_notebooks_affect_the_combine_cell(committed):
    committed.cell("op/impls/new.md", WRITE, MEASURING)
    assert affected(committed) == {"op/impls/new.md:a": ["name"], C: ["upstream op/impls/new.md:a"]}
    (committed.root / "op/impls/new.md").unlink()
    (committed.root / "op/impls/x.md").unlink()

    assert affected(committed) == {C: [f"upstream {X}"]}


def test_a_project_in_a_folder_of_its_repository_is_compared_with_itself(tmp_path, committed):
    top = tmp_path / "top"
    top.mkdir()
    (committed.root / ".git").rename(tmp_path / "old.git")
    committed.root = committed.root.rename(top / "benches")
    commit_all(top)
    committed.cell("z.md", "print(1)")

    assert affected(committed) == {"z.md:a": ["name"]}


@pytest.mark.parametrize("revision", ["nowhere", "--all", "HEAD:.gitignore"])
def test_an_unknown_revision_is_an_error(committed, revision):
    with pytest.raises(ProjectError, match="there is no such commit here") as caught:
        affected(committed, revision)

    assert "fetch-depth: 0" in str(caught.value)
