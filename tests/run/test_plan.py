"""What a build would run, and why, without running anything."""

import shutil

import pytest
from workspace import MEASURING, WRITE

from kernels_bench_tools.records.device import cuda_device
from kernels_bench_tools.run import plan as staleness
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.run.plan import PlannedAction, plan_build

X, Y, C = "op/impls/x.md:a", "op/impls/y.md:a", "op/results/c.md:combine"
SOURCES = (
    "# /// script\n# dependencies = []\n# [tool.uv.sources]\n# lib = { path = '../../../../lib' }\n# ///\n"
)


def combine(workspace, needs="../impls/*.md:a,./records/*.jsonl"):
    workspace.cell("op/results/c.md", "print(1)", f"id=combine needs={needs}")


@pytest.fixture
def operator(workspace):
    """Two implementations and their combine cell, built."""
    workspace.write("lib/lib.py", "")
    workspace.write("op/results/records/old.jsonl", "{}\n")
    workspace.cell("op/impls/x.md", SOURCES + WRITE, MEASURING, "title: X")
    workspace.cell("op/impls/y.md", "# get_kernel('a/b@1')\n" + WRITE, MEASURING, "title: Y")
    combine(workspace)
    workspace.build()
    return workspace


def plan(workspace, *targets, **options):
    """The cells that are not unchanged: action, reason, changed, upstream."""
    chosen = BuildOptions(**{"environment": "current", "processes": 1} | options)
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


def test_changed_code_header_and_outputs_are_named(operator):
    operator.cell("op/impls/x.md", SOURCES + WRITE + "pass", MEASURING, "title: X")
    assert plan(operator) == {X: run("code"), C: may(X)}
    operator.cell("op/impls/x.md", SOURCES.replace("[]", "['a']") + WRITE, MEASURING, "title: X")
    assert plan(operator) == {X: run("header"), C: may(X)}
    operator.cell("op/impls/x.md", SOURCES + WRITE, f"{MEASURING},*.txt", "title: X")
    assert plan(operator) == {X: run("outputs"), C: may(X)}


def test_a_changed_source_data_file_and_lock_are_named(operator):
    operator.write("lib/lib.py", "x = 1")
    operator.write("kernels.lock", "[]")
    operator.write("op/results/records/old.jsonl", "{} \n")

    assert plan(operator) == {
        X: run("source of lib"),
        Y: run("kernels.lock"),
        C: may(X, Y, changed=["file op/results/records/old.jsonl"]),
    }


def test_changed_workloads_mode_and_processes_are_named(operator):
    assert plan(operator, workloads="smoke") == {X: run("workloads"), Y: run("workloads"), C: may(X, Y)}
    assert plan(operator, X, mode="bwd") == {X: run("mode")}
    assert plan(operator, X, processes=2) == {X: run("processes")}


def test_a_changed_device_and_environment_are_named(operator, monkeypatch):
    def everything(changed):
        return {X: run(changed), Y: run(changed), C: may(X, Y, changed=[changed])}

    assert plan(operator, environment="uv") == everything("environment")
    monkeypatch.setattr(staleness, "current_device", lambda: cuda_device("NVIDIA H200"))

    assert plan(operator) == everything("device")


def test_a_damaged_and_a_removed_result_are_reported(operator):
    path = operator.root / operator.result("op/impls/x.md").artifacts["op.jsonl"]
    path.write_text("tampered")
    assert plan(operator)[X] == run(reason="damaged entry (artifacts/op.jsonl was changed)")
    shutil.rmtree(operator.root / ".kbt/cache")

    assert plan(operator)[X] == run(reason="its result is no longer stored")


def test_an_unsupported_cell_is_neither_stale_nor_unchanged(workspace, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    workspace.cell("op/impls/x.md", WRITE, MEASURING, "requires: [cuda]")
    combine(workspace, "../impls/*.md:a")
    action, reason, _, _ = plan(workspace)[X]
    assert action is PlannedAction.UNSUPPORTED
    assert reason.startswith("needs a CUDA device")
    workspace.build()

    assert plan(workspace) == {}


def test_a_plan_lists_the_cells_that_the_build_then_runs_and_writes_nothing(operator):
    operator.cell("op/impls/x.md", SOURCES + WRITE + "pass", MEASURING, "title: X")
    operator.write("op/results/records/new.jsonl", "{}\n")
    before = {path: path.stat().st_mtime_ns for path in operator.root.rglob("*")}
    planned = plan(operator)

    assert {path: path.stat().st_mtime_ns for path in operator.root.rglob("*")} == before
    assert planned == {X: run("code"), C: may(X, changed=["file op/results/records/new.jsonl"])}
    assert operator.build().started == list(planned)
