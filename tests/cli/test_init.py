"""``kbt init`` makes a project that builds, in an empty folder or in somebody's repository."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from projects import command_server, contents, copy_project

from kernels_bench_tools.cli import new as module
from kernels_bench_tools.cli.app import find_app, run
from kernels_bench_tools.notebooks.harness import Harness
from kernels_bench_tools.run.environment.base import find_uv

ROOT = Path(__file__).parents[2]
MADE = [
    "pyproject.toml",
    ".gitignore",
    "index.md",
    "operators/softmax.py",
    "softmax/index.md",
    "softmax/impls/torch_softmax.md",
    "softmax/impls/my_softmax.md",
    "softmax/results/combined_results.md",
    ".github/workflows/benchmarks.yml",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, which is the current one; cells take the package from PyPI."""
    monkeypatch.setattr(module, "_own_source", lambda root: Harness())
    empty = tmp_path / "my_kernels"
    empty.mkdir()
    monkeypatch.chdir(empty)
    return empty


def kbt(*arguments):
    return run(find_app(arguments), arguments)


def test_an_empty_folder_becomes_a_project_without_problems(folder, capsys):
    assert kbt("init") == 0
    told = capsys.readouterr().out
    assert told.splitlines()[: len(MADE)] == MADE
    assert contents(folder).keys() == set(MADE)
    assert re.findall(r"^  (kbt \w+)", told, re.MULTILINE) == ["kbt run", "kbt build", "kbt record"]
    assert all(len(line) <= 80 for line in told.splitlines())

    assert kbt("check") == 0
    assert capsys.readouterr().out == "5 notebooks, 0 problems, 0 notes\n"
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["kbt"]
    assert (settings["title"], settings["harness"]) == ("My Kernels", "kernels-bench-tools")

    before = contents(folder)
    assert kbt("init") == 2
    assert "already has [tool.kbt]" in capsys.readouterr().err
    assert contents(folder) == before


def test_an_existing_project_keeps_its_files_byte_for_byte(folder, capsys):
    settings = b'# caf\xc3\xa9\r\n[project]\r\nname = "x"\r\n[tool.uv]\r\npackage = false'
    (folder / "pyproject.toml").write_bytes(settings)
    (folder / ".gitignore").write_bytes(b"*.o\n__pycache__\n.kbt/\n")
    (folder / "docs").mkdir()
    (folder / "docs/index.md").write_text("# Docs\n")

    assert kbt("init") == 0
    assert (folder / "pyproject.toml").read_bytes().startswith(settings + b"\r\n\r\n[tool.kbt]\r\n")
    assert tomllib.loads((folder / "pyproject.toml").read_bytes().decode())["project"] == {"name": "x"}
    ignored = b"*.o\n__pycache__\n.kbt/\n\n.venv/\n/site/\n/hub-builds/\n"
    assert (folder / ".gitignore").read_bytes() == ignored
    assert "note: docs/index.md matches `notebooks`" in capsys.readouterr().err


KILLED = """
import os
from kernels_bench_tools.cli import new
from kernels_bench_tools.cli.app import find_app, run
from kernels_bench_tools.notebooks.harness import Harness
new._own_source = lambda root: Harness()
left = iter(range({synced}))
os.fsync = lambda _: next(left, None) is None and os.kill(os.getpid(), 9)
run(find_app({arguments}), {arguments})
"""


@pytest.mark.parametrize(
    ("command", "synced"),
    [
        *(("init", synced) for synced in (0, 8, 15)),
        *(("new operator scan", synced) for synced in (0, 1, 3)),
        ("new implementation softmax/other", 0),
        *(("upgrade --to 2026-01-01", synced) for synced in (0, 1, 3)),
    ],
)
def test_a_killed_command_is_continued_by_the_same_one(folder, monkeypatch, command, synced):
    arguments = command.split()
    code = KILLED.format(synced=synced, arguments=arguments)
    for place in ("whole", "cut"):
        (folder / place / "kernels").mkdir(parents=True)
        monkeypatch.chdir(folder / place / "kernels")
        assert command == "init" or kbt("init") == 0
        if place == "cut":
            assert command_server(str(ROOT)).run(folder / place / "kernels", code).returncode == -9
        assert kbt(*arguments) == 0

    assert contents(folder / "cut") == contents(folder / "whole")


def test_an_existing_workflow_is_kept_so_a_repository_can_have_several_projects(folder, capsys):
    (folder / ".git").mkdir()
    assert kbt("init", "one") == 0
    before = contents(folder)
    capsys.readouterr()

    assert kbt("init", "two b") == 0
    told = capsys.readouterr()
    assert "note: ../.github/workflows/benchmarks.yml already exists and was kept" in told.err
    assert "\n  cd 'two b'\n" in told.out
    assert before.items() <= contents(folder).items()


@pytest.mark.parametrize(
    ("there", "arguments", "said"),
    [
        ({"pyproject.toml": "[tool.kbt"}, [], "cannot be read: Expected ']'"),
        ({"pyproject.toml": "[[tool]]\n"}, [], "[tool.kbt] cannot be added"),
        ({"pyproject.toml": "\ufeff[project]\n"}, [], "(at line 1, column 1)"),
        ({"index.md": "mine", "softmax/impls/my_softmax.md": "mine"}, [], "my_softmax.md: already exist"),
        ({"file": ""}, ["file/inside"], "/file: is not a folder"),
    ],
)
def test_what_is_in_the_way_is_named_in_one_line_and_nothing_is_made(folder, capsys, there, arguments, said):
    for name, text in there.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    assert kbt("init", *arguments) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert contents(folder) == {name: text.encode() for name, text in there.items()}


def test_nothing_is_made_if_a_file_of_the_project_cannot_be_written(folder, capsys):
    (folder / ".gitignore").mkdir()
    assert kbt("init") == 2
    (folder / ".gitignore").rmdir()
    (folder / ".github").touch()
    assert kbt("init") == 2
    (folder / ".github").rename(folder / "softmax")
    assert kbt("init") == 2
    assert "/softmax: cannot be written (Not a directory)" in capsys.readouterr().err
    assert contents(folder).keys() == {"softmax"}


def test_the_workflow_of_a_folder_in_a_repository_is_at_its_top(folder):
    (folder / ".git").mkdir()
    assert kbt("init", "bench/gpu") == 0

    workflow = yaml.safe_load((folder / ".github/workflows/benchmarks.yml").read_text())
    build = workflow["jobs"]["build"]
    assert build["defaults"] == {"run": {"working-directory": "bench/gpu"}}
    paths = [step["with"]["path"] for step in build["steps"] if "path" in step.get("with", {})]
    assert paths[-1] == "bench/gpu/site/"
    assert paths[0] == paths[1] == "bench/gpu/.kbt/cache\nbench/gpu/.kbt/last.json\n"


def test_the_workflow_is_pinned_as_this_repository_s_and_publishes_a_failed_build(folder):
    kbt("init")
    text = (folder / ".github/workflows/benchmarks.yml").read_text()
    ours = (ROOT / ".github/workflows/report.yml").read_text()
    build, deploy = yaml.safe_load(text)["jobs"].values()

    assert set(re.findall(r"uses: (.*)", text)) == set(re.findall(r"uses: (.*)", ours))
    assert "@" not in re.sub(r"uses: .*", "", text)  # every placeholder is filled
    assert "defaults" not in build
    scripts = [step["run"] for step in build["steps"] if "run" in step]
    assert scripts[-2:] == ["kbt check", "kbt build"]
    assert build["steps"][-1]["if"] == "${{ !cancelled() && steps.build.outcome != 'skipped' }}"
    assert deploy["if"] == "${{ !cancelled() && needs.build.outputs.published == 'success' }}"
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["urls"]["Repository"] == module._REPOSITORY


@pytest.mark.parametrize(
    ("source", "harness"),
    [
        ({}, f"git+{module._REPOSITORY}"),
        ({"path": "/home/me/kbt"}, f"git+{module._REPOSITORY}"),
        ({"path": "third party/kbt"}, "./third party/kbt"),
        ({"git": "https://h/a/b.git", "rev": "0f"}, "git+https://h/a/b.git@0f"),
        ({"url": "https://h/x.whl"}, "https://h/x.whl"),
    ],
)
def test_without_a_release_the_package_comes_from_its_source(folder, monkeypatch, source, harness):
    package = folder / "third party/kbt/pyproject.toml"
    package.parent.mkdir(parents=True)
    package.write_text("[project]\n")
    monkeypatch.setattr(module, "_own_source", lambda root: Harness(source=source))
    assert kbt("init") == 0
    workflow = (folder / ".github/workflows/benchmarks.yml").read_text()

    assert yaml.safe_load(workflow)["env"] == {"HARNESS": harness}
    assert "Once the package is on PyPI" in workflow
    before = contents(folder)
    assert kbt("upgrade", "--harness", harness) == 0  # as the workflow does in its checkout
    own = not harness.endswith(module._REPOSITORY)
    assert (contents(folder) == before) is own
    code = (folder / "softmax/impls/torch_softmax.md").read_text()
    assert (f'git = "{module._REPOSITORY}"' in code) is not own
    assert kbt("check") == 0


@pytest.mark.network
def test_from_a_wheel_and_an_empty_folder_to_committed_records(tmp_path):
    """As docs/own-repository.md shows it: install, init, edit, run, build, record."""
    copy_project(tmp_path / "source")
    folder, wheels, uv = tmp_path / "mine", tmp_path / "wheels", find_uv()
    folder.mkdir()
    wheels.mkdir()
    links = f"{wheels},{os.environ.get('UV_FIND_LINKS') or os.environ.get('PIP_FIND_LINKS', '')}"
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    environment |= {"UV_FIND_LINKS": links.strip(","), "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}"}

    def do(*command):
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        # On a busy machine a tiny workload may be rejected, which is exit code 1 of what measures.
        assert done.returncode in ({0, 1} if "smoke" in command else {0}), done.stdout + done.stderr
        return done.stdout

    do(uv, "build", "-q", "--wheel", "-o", str(wheels), str(tmp_path / "source"))
    do(uv, "venv", "-q", "-p", sys.executable, ".venv")
    do(uv, "pip", "install", "-q", "-p", ".venv", "kernels-bench-tools")
    do("kbt", "init")
    notebook = folder / "softmax/impls/my_softmax.md"
    notebook.write_text(notebook.read_text().replace("title: My softmax", "title: Edited softmax"))
    (cell,) = json.loads(do("kbt", "run", "softmax/my_softmax", "--workloads", "smoke", "--json"))
    do("kbt", "build", "--workloads", "smoke")
    recorded = do("kbt", "record")

    assert [row["status"] for row in cell["rows"]] in (["ok"], ["rejected"], ["disturbed"])
    assert cell["baseline"] == "PyTorch softmax"
    assert "Edited softmax" in (folder / "site/softmax/index.html").read_text()
    assert len(re.findall(r"^softmax/results/records/.*_softmax\.jsonl", recorded, re.MULTILINE)) == 2
