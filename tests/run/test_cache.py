"""What makes a cell run again, and what does not."""

import subprocess

import pytest
from workspace import MEASURING, WRITE, with_this_package

NEEDS = "import json, os\nneeds = json.load(open(os.environ['KBT_NEEDS']))\n"
COMBINE = NEEDS + "print([(c['notebook'], c['status'], c['front']['title']) for c in needs['cells']])"
X, Y, C = "op/impls/x.md:a", "op/impls/y.md:a", "op/results/c.md:combine"
E, Z = "elsewhere/impls/x.md:a", "z.md:a"


@pytest.fixture
def operator(workspace):
    """Two implementations and their combine cell, built."""
    workspace.cell("op/impls/x.md", WRITE, MEASURING, "title: X")
    workspace.cell("op/impls/y.md", WRITE, MEASURING, "title: Y")
    workspace.cell("op/results/c.md", COMBINE, "id=combine needs=../impls/*.md:a,./records/*/*.jsonl")
    assert sorted(workspace.build().started) == [X, Y, C]
    return workspace


def test_a_second_build_runs_nothing_but_git_and_changes_no_file(operator, monkeypatch):
    popen = subprocess.Popen

    def only_git(command, *args, **kwargs):
        assert command[0] == "git"
        return popen(command, *args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", only_git)
    operator.build()
    before = {path: path.stat().st_mtime_ns for path in operator.root.rglob("*") if path.is_file()}
    told = operator.build()

    assert told.started == told.environments == []
    assert all(run.cached for run in told.finished.values())
    assert {path: path.stat().st_mtime_ns for path in operator.root.rglob("*") if path.is_file()} == before


def test_an_edited_cell_runs_with_its_dependents_and_edited_prose_runs_nothing(operator):
    operator.cell("op/impls/x.md", WRITE.replace('"w"', '"v"'), MEASURING, "title: X")
    operator.cell("op/impls/y.md", WRITE, MEASURING, "title: Y", prose="Other\n\n# words.")

    assert operator.build().started == [X, C]
    assert operator.result("op/impls/y.md").line == 8


@pytest.mark.parametrize("options", [{"workloads": "smoke"}, {"processes": 2}, {}])
def test_other_workloads_processes_or_variables_run_only_cells_that_measure(operator, options, monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    operator.cell("z.md", "1")
    operator.build()
    if not options:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")

    assert sorted(operator.build(**options).started) == [X, Y]
    assert operator.build(**options).started == []
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert operator.build().started == []


@pytest.mark.parametrize(
    ("files", "text", "expected"),
    [
        ("measure/harness.py", "x = 1", [E, X]),
        ("operators/op.py", "x = 1", [E, X]),
        # A folder without a module of its name may measure any operator.
        ("operators/other.py", "x = 1", [E]),
        ("operators/other.py", "# With a comment.\n\n", []),
        ("hub/fetching.py", "x = 1", [E, X]),
        ("records.py", "x = 1", [E, X, Z]),
        ("results/combine.py", "x = 1", [Z]),
        ("selfcheck/floors.py report/site.py run/cell.py cli/build.py", "x = 1", []),
        ("../pyproject.toml", '[tool.kbt]\n[project.optional-dependencies]\nreport = ["rich"]\n', []),
        ("../pyproject.toml", '[tool.kbt]\n[project.optional-dependencies]\nhub = ["kernels"]\n', [E, X]),
        ("../pyproject.toml", '[tool.kbt]\n[project]\ndependencies = ["numpy<2"]\n', [E, X, Z]),
    ],
)
def test_only_what_a_cell_may_import_or_install_of_this_package_runs_it(workspace, files, text, expected):
    for file in ("__init__.py", "operators/op.py", "operators/other.py", *files.split()):
        workspace.write(f"kernels_bench_tools/{file}", "[tool.kbt]" if file.endswith("toml") else "")
    for folder in ("op", "elsewhere"):
        workspace.cell(f"{folder}/impls/x.md", with_this_package("../../../..", "[hub]") + WRITE, MEASURING)
    workspace.cell("z.md", with_this_package("../..") + "print(1)")
    workspace.build()
    for file in files.split():
        workspace.write(f"kernels_bench_tools/{file}", text)

    assert sorted(workspace.build().started) == expected


def write_operators(workspace):
    for name in ("op", "other", "_shared"):
        workspace.write(f"operators/{name}.py", "")
    for operator in ("op", "other", "elsewhere", "layer_norm"):
        workspace.cell(f"{operator}/impls/x.md", WRITE, MEASURING)
    workspace.cell("z.md", "print(1)")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("op.py", ["elsewhere/impls/x.md:a", X]),
        ("_shared.py", ["elsewhere/impls/x.md:a", X, "other/impls/x.md:a"]),
        ("_tables/sizes.json", ["elsewhere/impls/x.md:a", X, "other/impls/x.md:a"]),
        ("__pycache__/op.pyc", []),
        ("notes.txt", []),
    ],
)
def test_a_projects_operator_runs_the_cells_that_measure_it(workspace, file, expected):
    write_operators(workspace)
    workspace.build()
    path = workspace.write(f"operators/{file}", "x = 1")

    # A folder without a module of its name may measure any operator, and layer_norm is built in.
    assert sorted(workspace.build().started) == expected
    path.write_text("\n# Comments do not count.\nx = 1\n" if path.suffix == ".py" else "x = 1")
    assert workspace.build().started == []


@pytest.mark.parametrize("change", ["write_text('x = 2')", "unlink()"])
def test_a_cell_that_changes_its_operator_has_no_result(workspace, change):
    write_operators(workspace)
    workspace.cell(
        "op/impls/x.md",
        f"import pathlib\npathlib.Path({str(workspace.root)!r}, 'operators/op.py').{change}\n{WRITE}",
        MEASURING,
    )
    workspace.build("op", "layer_norm")

    assert workspace.result("op/impls/x.md").status == "invalid"
    assert workspace.result("op/impls/x.md").reason.startswith(
        "source of operators/op.py changed while it ran"
    )
    assert workspace.result("layer_norm/impls/x.md").status != "invalid"


def test_a_cell_that_removes_a_table_of_its_operator_has_no_result(workspace):
    write_operators(workspace)
    table = workspace.write("operators/_tables/sizes.json", "{}")
    workspace.cell("op/impls/x.md", f"import os\nos.remove({str(table)!r})\n{WRITE}", MEASURING)
    workspace.build("op")

    assert workspace.result("op/impls/x.md").status == "invalid"


def test_another_family_runs_a_cell_that_measures(operator):
    operator.cell("op/impls/x.md", WRITE, MEASURING, "title: X\nfamily: mine")

    assert operator.build().started == [X, C]


def test_a_failed_cell_is_cached_and_runs_again_on_request(workspace, tmp_path):
    flag = tmp_path / "flag"
    workspace.cell("n.md", f"import os\nprint('tried')\nassert os.path.exists({str(flag)!r}), 'no flag'")
    workspace.cell("m.md", "1")
    workspace.build()
    workspace.build("m.md")
    shown = workspace.result("n.md")

    assert (shown.status, shown.reason) == ("error", "AssertionError: no flag")
    assert workspace.text(shown.stdout) == "tried\n"
    flag.touch()
    assert workspace.build().started == []
    assert workspace.build(retry_failed=True).started == ["n.md:a"]
    assert workspace.result("n.md").status == "ok"
    assert workspace.build().started == []


def entry_of(workspace, notebook="op/impls/x.md"):
    return (workspace.root / workspace.result(notebook).artifacts["op.jsonl"]).parents[1]


def test_a_damaged_entry_is_reported_and_its_cell_runs_again(operator):
    (entry_of(operator) / "result.json").write_text("{")
    told = operator.build()

    assert told.started == [X]
    assert told.notes == [f"{X}: its stored result is damaged (result.json was changed) and is ignored"]
    assert operator.build().started == []
    assert operator.recorder.notes == []


def test_an_entry_that_cannot_be_removed_is_replaced_again_and_again(operator, monkeypatch):
    # As one that root owns; tests may run as root.
    monkeypatch.setattr("kernels_bench_tools.run.cache.store.remove_tree", lambda *_, **__: None)

    for _ in range(3):
        assert X in operator.build(rerun=True).started


def test_a_build_killed_while_it_replaced_a_result_keeps_the_old_one(operator):
    entry = entry_of(operator)
    entry.rename(entry.with_name(f"{entry.name}.replaced"))

    assert operator.build().started == []
    assert entry.exists()
