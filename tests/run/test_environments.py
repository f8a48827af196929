"""Cells in environments made by uv, and in the current one."""

import os
import shutil
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from projects import NO_COPY, contents
from workspace import make_wheel

from kernels_bench_tools.measure.judge import runner as judge
from kernels_bench_tools.measure.judge.process import OlderFiles
from kernels_bench_tools.notebooks.header import needs_old_python, read_header
from kernels_bench_tools.notebooks.survey import cell_problems, survey_project
from kernels_bench_tools.own_process import PACKAGE_FOLDER, import_paths
from kernels_bench_tools.run.environment.base import find_uv, torch_notice
from kernels_bench_tools.run.environment.installed import Installed
from kernels_bench_tools.run.environment.variables import uv_variables
from kernels_bench_tools.text.hiding import without_private
from kernels_bench_tools.text.words import words

HEADER = '# /// script\n# requires-python = ">=3.11"\n# dependencies = []\n# ///\n'


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tiny packages in a folder that pip would look into."""
    folder = tmp_path / "wheels"
    for name in ("tiny_one", "tiny_two", "torch"):
        make_wheel(folder, name)
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    return folder


def header(*dependencies: str) -> str:
    return HEADER.replace("[]", "[" + ", ".join(f'"{one}"' for one in dependencies) + "]")


def test_a_cell_has_exactly_the_packages_of_its_header_or_its_deps(workspace, wheels):
    workspace.cell("one.md", header("tiny-one") + "import tiny_one\n")
    workspace.cell("two.md", header("tiny-two") + "import tiny_two, tiny_one\n")
    workspace.cell("deps.md", "import tiny_one\nraise ValueError", "id=a deps=tiny-one")
    workspace.build(environment="uv")

    assert workspace.result("one.md").status == "ok"
    assert "tiny-one==1.0" in workspace.text(workspace.result("one.md").environment_log)
    assert workspace.result("two.md").reason == "ModuleNotFoundError: No module named 'tiny_one'"
    assert workspace.result("deps.md").reason == "ValueError"
    assert ", line 2, in" in workspace.text(workspace.result("deps.md").stderr)


def test_packages_that_a_cell_installs_are_removed_before_the_next_cell(workspace, wheels):
    arguments = [find_uv(), "pip", "install", "--find-links", str(wheels), "tiny-two", "--python"]
    code = f"import subprocess, sys\nsubprocess.run([*{arguments}, sys.prefix], check=True)\n"
    workspace.cell("a.md", header("tiny-one") + code + "import tiny_two\n")
    workspace.cell("b.md", header("tiny-one") + "import tiny_one, tiny_two\n")
    told = workspace.build(environment="uv", jobs=1)

    assert workspace.result("a.md").status == "ok", workspace.result("a.md").reason
    assert workspace.result("b.md").reason == "ModuleNotFoundError: No module named 'tiny_two'"
    assert any("b.md:a: packages in its environment were modified" in note for note in told.notes)


def test_a_cell_without_a_header_is_isolated(workspace, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    workspace.cell("n.md", "import msgspec")
    workspace.cell("m.md", "import kernels_bench_tools")
    workspace.build(environment="uv")

    assert "No module named 'msgspec'" in workspace.result("n.md").reason
    assert "No module named 'kernels_bench_tools'" in workspace.result("m.md").reason


def test_a_failed_resolution_has_the_message_of_uv_and_stops_nothing_else(workspace, wheels):
    front = "family: f"
    for name in "xy":
        workspace.cell(f"op/impls/{name}.md", header("nowhere-to-be-found"), "id=a outputs=op.jsonl", front)
    workspace.cell("op/impls/own.md", header("kernels-bench-tools>=0.1"), "id=a outputs=op.jsonl")
    workspace.cell("op/z.md", HEADER + "print('ran')", "id=a needs=./impls/*.md:a")
    workspace.build(environment="uv")

    for name in ("op/impls/x.md", "op/impls/y.md"):
        run = workspace.result(name)
        assert run.status == "error"
        assert "nowhere-to-be-found" in run.reason
        assert "\n" not in run.reason
        assert "nowhere-to-be-found" in workspace.text(run.environment_log)
        assert workspace.records(name)[0]["err"]["type"] == "Resolution"
    assert workspace.result("op/z.md").status == "ok"
    said = workspace.result("op/impls/own.md").reason
    assert "Name a path or git source for all cells: kbt upgrade" in said


def test_a_cell_for_an_old_python_is_refused_before_anything_is_installed(workspace, monkeypatch):
    monkeypatch.setattr(
        "kernels_bench_tools.run.environment.base.UvEnvironment._run", None
    )  # uv is not started
    old = ["==3.9.*", "<3.10", "~=3.8.0", "==3.9.18", ">=3.8,<3.10"]
    for number, requires in enumerate(old):
        code = f"# /// script\n# requires-python = '{requires}'\n# dependencies = []\n# ///\nprint('ok')"
        workspace.cell(f"{number}.md", code)
    workspace.build(environment="uv")

    problems = cell_problems(survey_project(workspace.project).notebooks.values())
    for number, (requires, problem) in enumerate(zip(old, problems, strict=True)):
        reason = f"requires-python is {requires}. Cells need Python 3.10 or later"
        assert workspace.result(f"{number}.md").reason == reason
        assert (problem.where, problem.expected) == (f"{number}.md:5", "Cells need Python 3.10 or later")
    later = ["", ">=3.8", "==3.10.*", "==3.11.7", ">=3.9,<3.12", "!=3.10.*", ">3.13"]
    assert not any(map(needs_old_python, later))


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


def test_uv_and_what_builds_a_package_get_no_credentials_but_those_of_indexes(workspace, monkeypatch):
    secrets = words("HF_TOKEN MY_DB_PASSWORD UV_PUBLISH_TOKEN SSH_AUTH_SOCK")
    needed = words("UV_INDEX_MINE_PASSWORD https_proxy NETRC XDG_CONFIG_HOME SSL_CLIENT_CERT")
    for name in [*secrets, *needed]:
        monkeypatch.setenv(name, "/some")
    settings = "requires = []\nbuild-backend = 'evil'\nbackend-path = ['.']\n"
    workspace.write("lib/pyproject.toml", f"[build-system]\n{settings}")
    workspace.write(
        "lib/evil.py", "import os\nopen('seen', 'w').write(' '.join(os.environ))\nraise SystemExit"
    )
    workspace.cell("n.md", header("lib @ file://" + str(workspace.root / "lib")))
    workspace.build(environment="uv")

    seen = (workspace.root / "lib/seen").read_text().split()
    assert {*secrets, *needed, "HOME"}.intersection(seen) == {*needed, "HOME"}


@pytest.mark.parametrize("name", [".venv/pyvenv.cfg", ".python-version", "op/uv.toml"])
def test_no_file_of_a_repository_names_a_program_or_settings_for_uv(workspace, wheels, monkeypatch, name):
    monkeypatch.delenv("PIP_FIND_LINKS")
    program = workspace.write(".venv/bin/python", f"#!/bin/sh\necho > '{workspace.root}/ran'\nexit 1\n")
    program.chmod(0o755)
    workspace.write(name, "home = /usr/bin\n" if name == ".venv/pyvenv.cfg" else f"{program}\n")
    listed = "# [tool.uv]\n# find-links = ['../../../../../wheels']\n# ///\n"  # still from the script
    workspace.cell("op/impls/x.md", header("tiny-one").removesuffix("# ///\n") + listed)
    workspace.build(environment="uv")

    assert workspace.result("op/impls/x.md").reason == ""
    assert not (workspace.root / "ran").exists()


def test_the_token_of_an_index_is_in_no_file_of_a_failed_build(workspace, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/SECRET/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    workspace.cell("op/impls/x.md", header("nowhere-to-be-found"), "id=a outputs=op.jsonl")
    workspace.build(environment="uv")

    assert "127.0.0.1:9/***/simple" in workspace.records("op/impls/x.md")[0]["err"]["msg"]
    assert [name for name, data in contents(workspace.root).items() if b"SECRET" in data] == []


def test_what_variables_for_uv_have_is_hidden_whatever_it_looks_like(workspace, monkeypatch):
    paths = words("""
        deadbeefdeadbeef t/horse-battery/wheels %20s%2Fsecret1/x simple/correcthorse whl?sv=1&code=abcdefg short/ab
        0b5e8f3c-11aa-4b6e-9d52-3f1f0a7c2b11 me/-/AbC:dEf packages/whl/hunter2
    """)
    monkeypatch.setenv("UV_FIND_LINKS", ",".join(f"https://h.example:443/{path}/" for path in paths))
    monkeypatch.setenv("UV_INDEX_PRIVATE_PASSWORD", "opensesame")
    monkeypatch.setenv("HTTPS_PROXY", "me:rosebud@127.0.0.1:9")
    monkeypatch.setenv("UV_OFFLINE", "1")
    settings = "requires = []\nbuild-backend = 'evil'\nbackend-path = ['.']\n"
    workspace.write("lib/pyproject.toml", f"[build-system]\n{settings}")
    said = "import os, sys, urllib.parse\ntext = repr(dict(os.environ))\nsys.exit(text + urllib.parse.unquote(text))"
    workspace.write("lib/evil.py", said)
    workspace.cell("n.md", header("lib @ file://" + str(workspace.root / "lib")))
    workspace.build(environment="uv")

    log = workspace.text(workspace.result("n.md").environment_log)
    assert "https://h.example:443/***" in log
    assert without_private("https://h.example/short/ab/x.whl") == "https://h.example/***/x.whl"
    seen = words(
        "deadbeef horse battery secret1 correcth abcdefg short/ab 0b5e AbC hunter2 opensesame rosebud"
    )
    written = b"\n".join(data for name, data in contents(workspace.root).items() if "lib/" not in name)
    assert [secret for secret in seen if secret.encode() in written] == []


def test_the_current_environment_is_the_running_interpreter(workspace, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    code = "import sys, kernels_bench_tools\nprint('/some/where' in sys.path, sys.executable)"
    run = workspace.run_cell(code, environment="current")

    assert workspace.text(run.stdout).startswith("True ")
    assert workspace.text(run.environment_log).startswith("current environment: CPython")


def test_uv_gets_the_indexes_of_pip():
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


TORCH = "# /// script\n# dependencies = ['torch==2.13.0', 'numpy']\n# ///\n"


@pytest.mark.parametrize(
    ("code", "environ", "told"),
    [
        (TORCH, {}, True),
        (TORCH, {"PIP_FIND_LINKS": "/wheels"}, False),
        (TORCH, {"UV_INDEX_URL": "https://download.pytorch.org/whl/cpu"}, False),
        (TORCH.replace("torch==", "torchao=="), {}, False),
        ("1", {}, False),
    ],
)
def test_what_torch_downloads_is_told_unless_a_build_for_cpus_may_be_chosen(workspace, code, environ, told):
    workspace.cell("n.md", code)
    cells = survey_project(workspace.project).notebooks["n.md"].cells

    assert ("3 GB" in torch_notice(cells, workspace.project.state, environ)) is told


def test_the_judge_imports_nothing_from_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    assert import_paths() == sys.path[1:]


@pytest.fixture
def packages(tmp_path):
    """The packages of an environment with torch, whose package of this project is in another folder."""
    site = tmp_path / "env/lib/python3.12/site-packages"
    for folder in (site / "torch-2.13.0+cpu.dist-info", site / "numpy"):
        folder.mkdir(parents=True)
    shutil.copytree(PACKAGE_FOLDER, tmp_path / "harness" / PACKAGE_FOLDER.name, ignore=NO_COPY)
    (site / "harness.pth").write_text(f"import nothing\n{tmp_path / 'harness'}\n")
    return site


def test_the_judge_has_the_torch_of_the_cell_and_no_package_that_a_header_names(packages):
    header = read_header(judge.judge_script(packages))

    assert header["requires-python"] == "==3.12.*"
    assert [one.partition("==")[0] for one in header["dependencies"]] == ["torch", "msgspec", "numpy"]
    assert header["dependencies"][0] == "torch==2.13.0"
    assert header["tool"] == {"uv": {"link-mode": "copy"}}  # no sources


def test_nothing_is_judged_in_an_environment_without_torch_or_with_another_version_of_this_package(packages):
    python = str(packages.parents[2] / "bin/python")
    harness = Path((packages / "harness.pth").read_text().splitlines()[1]) / PACKAGE_FOLDER.name
    assert judge.find_packages(python) == packages
    assert judge.other_package(packages) is False

    edited, added = harness / "stats.py", harness / "measure/evil.py"
    text = edited.read_text()
    edited.write_text("")
    assert judge.other_package(packages) is True
    edited.write_text(text)
    added.write_text("")
    assert judge.other_package(packages) is True
    added.unlink()
    assert judge.other_package(packages) is False
    shutil.rmtree(harness)
    assert judge.other_package(packages) is True

    (packages / "torch-2.13.0+cpu.dist-info").rmdir()
    assert judge.find_packages(python) is None


def test_the_judge_imports_no_module_that_is_newer_than_its_first_cell(monkeypatch, tmp_path):
    for name in ("of_before", "of_now", "changed"):
        (tmp_path / f"{name}_xyz.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    time.sleep(0.02)
    monkeypatch.setattr(sys, "meta_path", [OlderFiles()])
    time.sleep(0.02)
    (tmp_path / "changed_xyz.py").write_text("import os")
    (tmp_path / "of_now_xyz.py").replace(tmp_path / "moved_xyz.py")
    os.utime(tmp_path / "changed_xyz.py", (0, 0))

    import_module("of_before_xyz")
    for name in ("changed_xyz", "moved_xyz"):
        with pytest.raises(ModuleNotFoundError):
            import_module(name)


@pytest.mark.parametrize("line", [b"\xff\xfe,,", b'"' + b"z" * 200_000 + b'"'])
def test_files_whose_names_are_not_text_and_a_damaged_list_of_them_stop_nothing(tmp_path, line):
    packages = tmp_path / "lib/python3.11/site-packages"
    (packages / "x-1.dist-info").mkdir(parents=True)
    (packages / "x-1.dist-info/RECORD").write_bytes(b"x.py,sha256=abc,3\n" + line + b"\n")
    (packages / "x.py").write_text("a = 1")
    Path(os.fsdecode(bytes(packages) + b"/caf\xe9.py")).write_text("")
    installed = Installed(sys.executable, tmp_path, (), tmp_path / "manifest.json")
    installed.accept()
    (packages / "x.py").write_text("a = 22")
    assert "x.py" in installed.change()


def test_the_files_of_an_environment_are_looked_at_again_once_a_process_has_run(tmp_path):
    installed = Installed(sys.executable, tmp_path)
    installed.accept()
    assert installed.change(4) == ""
    (tmp_path / "x.py").write_text("a = 1")

    assert [installed.change(ended) != "" for ended in (4, 5, 5, None)] == [False, True, True, True]
