"""Cells in environments of uv's own."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.environments import find_environment
from kernels_bench_tools.notebooks.headers import read_header, with_header
from kernels_bench_tools.notebooks.variables import uv_variables

HEADER = '# /// script\n# requires-python = ">=3.11"\n# dependencies = []\n# ///\n'


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tiny packages in a folder that pip would look into."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("tiny_one", "tiny_two"):
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", "VALUE = 1\n")
            info = f"{name}-1.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    return folder


def header(*dependencies: str) -> str:
    return HEADER.replace("[]", "[" + ", ".join(f'"{one}"' for one in dependencies) + "]")


def test_a_cell_has_exactly_what_its_header_asks_for(workspace, wheels):
    workspace.cell("one.md", header("tiny-one") + "import tiny_one\n")
    workspace.cell("two.md", header("tiny-two") + "import tiny_two, tiny_one\n")
    workspace.build(environment="uv")

    assert workspace.result("one.md").status == "ok"
    assert "tiny-one==1.0" in workspace.text(workspace.result("one.md").environment_log)
    assert workspace.result("two.md").reason == "ModuleNotFoundError: No module named 'tiny_one'"


def test_a_package_that_leaves_the_header_leaves_the_environment(workspace, wheels):
    workspace.cell("n.md", header("tiny-one", "tiny-two") + "import tiny_one, tiny_two\n")
    workspace.build(environment="uv")
    workspace.cell("n.md", header("tiny-one") + "import tiny_one, tiny_two\n")
    workspace.build(environment="uv")

    assert "No module named 'tiny_two'" in workspace.result("n.md").reason


def test_deps_are_a_header(workspace, wheels):
    workspace.cell("n.md", "import tiny_one\nraise ValueError", "id=a deps=tiny-one")
    workspace.build(environment="uv")

    run = workspace.result("n.md")

    assert run.reason == "ValueError"
    assert ", line 2, in" in workspace.text(run.stderr)


def test_a_cell_without_a_header_is_isolated(workspace, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    workspace.cell("n.md", "import msgspec")
    workspace.cell("m.md", "import kernels_bench_tools")
    workspace.build(environment="uv")

    assert "No module named 'msgspec'" in workspace.result("n.md").reason
    assert "No module named 'kernels_bench_tools'" in workspace.result("m.md").reason


def test_a_failed_resolution_is_uvs_message_and_stops_nothing_else(workspace, wheels):
    front = "family: f"
    workspace.cell("op/impls/x.md", header("nowhere-to-be-found"), "id=a outputs=op.jsonl", front)
    workspace.cell("op/z.md", HEADER + "print('ran')", "id=a needs=./impls/*.md:a")
    workspace.build(environment="uv")

    run = workspace.result("op/impls/x.md")

    assert run.status == "error"
    assert "nowhere-to-be-found" in run.reason
    assert "\n" not in run.reason
    assert "nowhere-to-be-found" in workspace.text(run.environment_log)
    assert workspace.records("op/impls/x.md")[0]["err"]["type"] == "Resolution"
    assert workspace.result("op/z.md").status == "ok"


def test_a_relative_source_counts_from_two_levels_below_the_notebook(workspace, wheels):
    wheel = "tiny_one-1.0-py3-none-any.whl"
    shutil.copy(wheels / wheel, workspace.root / wheel)
    source = f"# [tool.uv.sources]\n# tiny-one = {{ path = '../../../../{wheel}' }}\n# ///\n"
    code = header("tiny-one").removesuffix("# ///\n") + source + "import tiny_one"
    workspace.cell("op/impls/x.md", code)
    workspace.build(environment="uv")

    assert workspace.result("op/impls/x.md").status == "ok"
    script = workspace.root / "op/impls/.kbt/cells/x__a.py"
    assert script.read_text() == code
    assert (script.parents[1] / ".gitignore").read_text() == "*\n"


def test_the_current_environment_is_the_running_one(workspace, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    code = "import sys, kernels_bench_tools\nprint('/some/where' in sys.path, sys.executable)"
    workspace.cell("n.md", code)
    workspace.build(environment="current")

    run = workspace.result("n.md")

    assert workspace.text(run.stdout).startswith("True ")
    assert workspace.text(run.environment_log).startswith("current environment: CPython")


def test_pips_indexes_are_uvs():
    pip = {
        "PIP_FIND_LINKS": "/a /b",
        "PIP_INDEX_URL": "https://i",
        "PIP_EXTRA_INDEX_URL": "https://j https://k",
    }

    variables = uv_variables(pip | {"VIRTUAL_ENV": "/v"})

    assert variables["UV_FIND_LINKS"] == "/a,/b"
    assert variables["UV_DEFAULT_INDEX"] == "https://i"
    assert variables["UV_INDEX"] == "https://j https://k"
    assert "VIRTUAL_ENV" not in variables


@pytest.mark.parametrize("own", ["UV_INDEX_URL", "UV_DEFAULT_INDEX"])
def test_uvs_own_index_wins(own):
    variables = uv_variables({"PIP_INDEX_URL": "https://pip", own: "https://uv"})

    assert variables[own] == "https://uv"
    assert "https://pip" not in [variables.get("UV_DEFAULT_INDEX"), variables.get("UV_INDEX_URL")]


def test_an_unknown_environment_is_refused():
    with pytest.raises(ProjectError, match="uv or current"):
        find_environment("conda")


@pytest.mark.parametrize("dependency", ["six", "six; python_version < '4'", 'six; python_version < "4"'])
def test_deps_become_toml(dependency):
    code = with_header("print(1)", [dependency])

    assert read_header(code) == {"dependencies": [dependency]}
    assert code.startswith("print(1)\n")
    assert with_header(code, ["other"]) == code
