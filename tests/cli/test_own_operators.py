"""A project with an operator of its own: what ``kbt new`` wrote runs as it is, and rows are judged by its module."""

import json
from pathlib import Path

import pytest
from projects import contents, once_per_run, run_kbt

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Judged, Record, Status
from kernels_bench_tools.records.summary import Summary

SMOKE = ("--env", "current", "--workloads", "smoke")
HEAD = """
import json, os
from dataclasses import replace
from pathlib import Path
from kernels_bench_tools import run_benchmark
"""
CELLS = {
    # Whatever the operator is when the cell calls the harness, it is judged by the one in its key.
    "edits": HEAD
    + """
path = Path(json.load(open(os.environ["KBT_CONTEXT"]))["operators"], "softmax.py")
before = path.read_text()
path.write_text(before.replace("return 2 * x", "return 3 * x"))
try:
    run_benchmark("softmax", lambda x: 3 * x)
finally:
    path.write_text(before)
""",
    # What it leaves is there while all others run.
    "changes": HEAD
    + """
folder = Path(json.load(open(os.environ["KBT_CONTEXT"]))["operators"])
(folder / "softmax.py").write_text("OPERATOR = 1")
(folder / "_planted.py").write_text("")
(folder / "layer_norm.py").write_text("1 / 0")
run_benchmark("softmax", lambda x: 3 * x)
""",
    "own": HEAD
    + """
from kernels_bench_tools.measure.operator import find_operator
folder = json.load(open(os.environ["KBT_CONTEXT"]))["operators"]
run_benchmark(replace(find_operator("softmax", folder), reference=lambda x: 3 * x, baseline=None), lambda x: 3 * x)
""",
}


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an operator of its own, built once for all workers of a test run. Tests must not change it."""

    def build(project: Path) -> None:
        (project / "pyproject.toml").write_text("[tool.kbt]\n")
        assert run_kbt(project, "new", "operator", "softmax").returncode == 0
        assert run_kbt(project, "new", "implementation", "softmax/mine").returncode == 0
        module = project / "operators" / "softmax.py"
        module.write_text(module.read_text().replace("OPERATOR =", "print('loaded')\nOPERATOR ="))
        for name, code in CELLS.items():
            fence = f"```python id=benchmark outputs=softmax.jsonl\n{code}\n```\n"
            (project / "softmax" / "impls" / f"{name}.md").write_text(f"---\ntitle: {name}\n---\n\n{fence}")
        sources = contents(project / "operators")
        done = run_kbt(project, "build", *SMOKE)
        for path in (project / "operators").glob("*.py"):
            path.unlink()
        for name, data in sources.items():
            (project / "operators" / name).write_bytes(data)
        assert "site/index.html" in done.stdout, done.stderr
        (project / "run.json").write_text(run_kbt(project, "run", "softmax/mine", *SMOKE, "--json").stdout)

    return once_per_run(tmp_path_factory, "own", build)


def record(own: Path, name: str) -> Record:
    (path,) = own.glob(f"site/softmax/impls/artifacts/{name}/**/softmax.jsonl")
    assert str(own) not in path.read_text()
    (found,) = read_records(path)
    return found


def test_a_new_operator_runs_as_it_is_and_is_published(own: Path) -> None:
    (cell,) = json.loads((own / "run.json").read_text())

    assert cell["baseline"] == "PyTorch Softmax"
    assert [row["status"] for row in cell["rows"]] in (["ok"], ["disturbed"])
    assert "Mine" in (own / "site" / "softmax" / "index.html").read_text()


def test_a_projects_operator_is_judged_separately_and_ranked(own: Path) -> None:
    found = record(own, "torch_softmax")
    (path,) = own.glob("site/softmax/results/artifacts/combine/summary.json")
    (device,) = read_struct(path, Summary).devices
    rows = {row.implementation: row for row in device.rows}

    assert (found.op, found.status, found.judged) == ("softmax", Status.OK, Judged.SEPARATELY)
    for name in ("torch_softmax", "mine"):  # other tests use the cores, too
        assert rows[name].rank or rows[name].status is Status.DISTURBED
    assert rows["edits"].rank is rows["own"].rank is None


def test_a_cell_is_not_judged_by_what_it_makes_of_its_operator(own: Path) -> None:
    edited, other = record(own, "edits"), record(own, "own")

    # By the operator before the edit.
    assert (edited.status, edited.judged) == (Status.INCORRECT, Judged.SEPARATELY)
    assert (other.status, other.judged) == (Status.OK, Judged.NOT)


def test_operators_are_run_once_by_check_if_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    assert run_kbt(tmp_path, "new", "operator", "right").returncode == 0
    module = (tmp_path / "operators/right.py").read_text()
    wrong = {
        "raising": ("return 2 * x", "return x @ x"),
        "listed": ("return (torch.randn(shape", "return ([torch.randn(shape"),
        "sliced": ("yield index, (row,)", "yield index, (x[0],)"),
    }
    for name, (part, other) in wrong.items():
        code = module.replace('name="right"', f'name="{name}"').replace(part, other)
        if name == "listed":
            code = code.replace("dtype=workload.torch_dtype),)", "dtype=workload.torch_dtype)],)")
        (tmp_path / f"operators/{name}.py").write_text(code)

    found = run_kbt(tmp_path, "check", "--operators")

    told = dict(line.split(": ", 1) for line in found.stderr.splitlines() if not line.startswith("note"))
    assert found.returncode == 1
    assert len(told) == 3
    places = " ".join(told)
    assert "operators/raising.py:" in places
    assert "operators/listed.py:" in places
    assert "operator sliced" in places
    assert run_kbt(tmp_path, "check").returncode == 0
