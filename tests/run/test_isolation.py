"""Cells that change what other cells run: sources, environments, bytecode, results and compiled kernels."""

import fcntl
import marshal
import os
import resource
import subprocess
import sys
from functools import partial

import pytest
from workspace import MEASURING, WRITE_MEASURED, make_wheel

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.run.process import run
from kernels_bench_tools.run.process.confined import can_confine, confined, key_folder

A, B = "op/impls/a.md", "op/impls/b.md"
HEADER = """# /// script
# requires-python = ">=3.11"
# dependencies = ["tiny"]
# ///
import os, pathlib, sys, time, tiny
source = pathlib.Path(tiny.__file__)
"""
SHOW = "print(tiny.VALUE, 'PLANTED' in os.environ)\n"


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    folder = make_wheel(tmp_path / "wheels", "tiny")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    return folder


EDIT = """
about, size = source.stat(), source.stat().st_size
source.write_text("VALUE = 2\\n")
os.utime(source, ns=(about.st_atime_ns, about.st_mtime_ns))
"""
BYTECODE = """
import importlib.util, marshal
path = pathlib.Path(importlib.util.cache_from_source(source))
path.parent.mkdir(exist_ok=True)
about = source.stat()
head = importlib.util.MAGIC_NUMBER + b"".join(
    (int(n) & 0xFFFFFFFF).to_bytes(4, "little") for n in (0, about.st_mtime, about.st_size)
)
path.unlink(missing_ok=True)
path.write_bytes(head + marshal.dumps(compile("VALUE = 2", str(source), "exec")))
"""
UNCHECKED = BYTECODE.replace("(0, about.st_mtime, about.st_size)", "(1, 0, 0)")
PLANTS = [
    EDIT,
    "source.unlink(); source.write_text('VALUE = 2\\n')",
    "(source.parent / 'sitecustomize.py').write_text('import os; os.environ[\"PLANTED\"] = \"1\"')",
    "(source.parent / 'x.pth').write_text('import os; os.environ[\"PLANTED\"] = \"1\"')",
    # A folder comes before a module of the same name.
    "(source.parent / 'tiny').mkdir(); (source.parent / 'tiny/__init__.py').write_text('VALUE = 2')",
    "source.rename('/tmp/kept-' + str(os.getpid())); source.symlink_to('/dev/null')",
]


def test_a_cell_that_changes_its_environment_has_no_result_and_changes_no_other_cell(workspace, wheels):
    bad = [f"op/impls/a{number}.md" for number in range(len(PLANTS))]
    for name, plant in zip(bad, PLANTS, strict=True):
        workspace.cell(name, HEADER + WRITE_MEASURED + SHOW + plant, MEASURING)
    workspace.cell(B, HEADER + WRITE_MEASURED + SHOW, MEASURING)  # runs after them
    told = workspace.build(environment="uv")

    for name in bad:
        run = workspace.result(name)
        assert (run.status, [record["status"] for record in workspace.records(name)]) == (
            "invalid",
            ["invalid"],
        )
        assert "while it ran, so it has no result. Build again to run it" in run.reason
        assert any(f"{name}:a: packages in its environment were modified" in note for note in told.notes)
    assert {workspace.text(workspace.result(name).stdout) for name in (*bad, B)} == {"1 False\n"}
    assert (workspace.result(B).status, workspace.result(B).reason) == ("ok", "")
    assert workspace.build(environment="uv").started == [f"{name}:a" for name in bad]


def test_bytecode_that_a_cell_writes_is_compiled_again_from_its_source(workspace, wheels):
    plants = (BYTECODE, UNCHECKED, BYTECODE.replace("source)", "source, optimization=1)"))
    cells = {f"op/impls/a{number}.md": plant for number, plant in enumerate(plants)} | {B: ""}
    for name, plant in cells.items():
        workspace.cell(name, HEADER + WRITE_MEASURED + SHOW + plant, MEASURING)
    workspace.build(environment="uv")

    assert [workspace.text(workspace.result(name).stdout) for name in cells] == ["1 False\n"] * 4
    written = [
        *(wheels.parent / "uv").glob("environments-v2/*/lib/python*/site-packages/__pycache__/tiny.*.pyc")
    ]
    assert written
    for path in written:
        assert 1 in marshal.loads(path.read_bytes()[16:]).co_consts, path


def test_bytecode_that_python_writes_is_no_change(workspace, wheels):
    for name in (A, B):
        workspace.cell(name, HEADER + WRITE_MEASURED + SHOW, MEASURING)
    told = workspace.build(environment="uv")

    (packages,) = (wheels.parent / "uv").glob("environments-v2/*/lib/python*/site-packages")
    assert list(packages.glob("__pycache__/tiny.*.pyc"))
    assert [workspace.result(name).status for name in (A, B)] == ["ok", "ok"]
    assert told.notes == []
    told = workspace.build(environment="uv", rerun=True)
    assert told.notes == []


def test_an_environment_that_was_changed_after_a_build_is_made_again(workspace, wheels):
    workspace.cell(A, HEADER + WRITE_MEASURED + SHOW, MEASURING)
    workspace.build(environment="uv")
    (module,) = (wheels.parent / "uv").glob("environments-v2/*/lib/python*/site-packages/tiny.py")
    about = module.stat()
    module.write_text("VALUE = 2\n")
    os.utime(module, ns=(about.st_atime_ns, about.st_mtime_ns))
    record = module.parent / "tiny-1.0.dist-info/RECORD"
    record.write_text(record.read_text())
    workspace.build(environment="uv", rerun=True)

    assert workspace.result(A).status == "ok"
    assert workspace.text(workspace.result(A).stdout) == "1 False\n"


@pytest.mark.parametrize("mode", ["hardlink", "symlink"])
def test_what_a_cell_changes_in_uvs_cache_is_installed_again(workspace, wheels, monkeypatch, mode):
    monkeypatch.setenv("UV_LINK_MODE", mode)
    workspace.cell(A, HEADER + WRITE_MEASURED + EDIT, MEASURING)
    workspace.cell(B, HEADER.replace("3.11", "3.10") + WRITE_MEASURED + SHOW, MEASURING)
    cache = wheels.parent / "uv"
    cache.mkdir(exist_ok=True)
    with (cache / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as `uv run kbt build` does until it ends
        told = workspace.build(environment="uv")

    assert workspace.result(A).status == "invalid"
    assert workspace.text(workspace.result(B).stdout) == "1 False\n"
    assert len(told.notes) == 2
    cached = [path for path in cache.rglob("tiny.py") if "environments-v2" not in path.parts]
    assert cached
    assert {path.read_text() for path in cached} == {"VALUE = 1\n"}


def test_a_file_put_into_uvs_cache_fails_the_cells_that_would_get_it(workspace, wheels):
    workspace.cell(A, HEADER + WRITE_MEASURED, MEASURING)
    workspace.build(environment="uv")
    (module,) = (wheels.parent / "uv").glob("archive-v0/*/tiny.py")
    for python, name in enumerate(("x.pth", "sitecustomize.py"), 7):
        planted = module.with_name(name)
        planted.write_text("VALUE = 2\n")
        workspace.cell(B, HEADER.replace("3.11", f"3.{python}") + WRITE_MEASURED, MEASURING)
        workspace.build(environment="uv")
        planted.unlink()

        assert workspace.result(A).status == "ok"
        run = workspace.result(B)
        assert run.status == "error"
        assert f"/{name} is not listed in any RECORD" in run.reason
        assert "\n" not in run.reason


def test_a_result_that_another_cell_changed_is_not_used(workspace):
    workspace.cell(A, WRITE_MEASURED, MEASURING)
    code = "import glob\nfor path in glob.glob({!r}): open(path, 'a').write('{{}}')"
    pattern = str(workspace.root / ".kbt/cache/*/artifacts/op.jsonl")
    workspace.cell("op/b.md", code.format(pattern), "id=b needs=./impls/*.md:a")
    workspace.cell("op/c.md", "print('used')", "id=c needs=./b.md:b,./impls/*.md:a")
    workspace.build()

    run = workspace.result("op/c.md", "c")
    assert run.status == "invalid"
    assert run.reason.startswith(f"op.jsonl of {A}:a changed since this build began")
    assert not run.stdout


FORGE = """
import hashlib, hmac, json, os, pathlib

def first(*steps):
    for number, step in enumerate(steps):
        try:
            step()
            return print("step", number, "worked")
        except OSError:
            continue

key = pathlib.Path({key!r})
known = []
first(
    lambda: known.append(key.read_bytes()),
    lambda: os.truncate(key, 0),
    lambda: key.write_bytes(bytes(32)),
    key.unlink,
    lambda: key.parent.rename({root!r} + "/moved"),
    lambda: os.link(key, {root!r} + "/linked"),
    lambda: known.append(open(f"/proc/{{os.getppid()}}/mem", "rb")),
)
secret = known[0] if known else bytes(32)
for path in pathlib.Path({root!r}).glob(".kbt/cache/*/artifacts/op.jsonl"):
    if '"p50": 1.0' in path.read_text():
        path.write_text(path.read_text().replace('"p50": 1.0', '"p50": 5.0'))
        entry = path.parents[1]
        result = json.loads((entry / "result.json").read_text())
        result["artifacts"]["op.jsonl"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (entry / "result.json").write_text(json.dumps(result))
        files = sorted(file for file in entry.rglob("*") if file.is_file() and file.name != "digests.txt")
        lines = "".join(f"{{hashlib.sha256(f.read_bytes()).hexdigest()}}  {{f.relative_to(entry)}}\\n" for f in files).encode()
        mark = hmac.new(secret, f"{{entry.name}}\\n".encode() + lines, "sha256").hexdigest()
        (entry / "digests.txt").write_bytes(lines + f"# {{mark}}\\n".encode())
        print("forged")
"""


@pytest.fixture
def forge(workspace):
    return FORGE.format(key=str(key_folder() / "key"), root=str(workspace.root))


def test_a_result_that_a_cell_with_the_key_has_forged_is_measured_again(workspace, forge, monkeypatch):
    workspace.cell(A, WRITE_MEASURED, MEASURING)
    workspace.build()
    workspace.cell(B, WRITE_MEASURED + forge, MEASURING)
    monkeypatch.setattr(run, "confined", lambda start, _: start())  # as on systems without Landlock
    workspace.build()

    assert workspace.text(workspace.result(B).stdout) == "step 0 worked\nforged\n"
    assert workspace.result(A).status == "invalid"
    assert workspace.build().started == [f"{A}:a"]


@pytest.mark.parametrize("when", ["in a build", "after it"])
def test_a_result_that_a_process_of_a_cell_forged_with_its_digests_is_measured_again(workspace, forge, when):
    workspace.cell(A, WRITE_MEASURED, MEASURING)
    workspace.build()
    if not can_confine():
        pytest.skip("needs Landlock, and a folder of the key that is not beside temporary files")
    if when == "in a build":
        workspace.cell(B, WRITE_MEASURED + forge, MEASURING)
        workspace.build()
        assert workspace.text(workspace.result(B).stdout) == "forged\n"
        assert workspace.result(A).status == "invalid"
    else:
        start = partial(subprocess.run, [sys.executable, "-c", forge], capture_output=True, text=True)
        assert confined(start, {}).stdout == "forged\n"
    told = workspace.build()

    assert told.started == [f"{A}:a"]
    said = [note.partition(" (")[0] for note in told.notes]
    assert said == [f"{A}:a: its stored result is damaged"] * (when == "after it")
    assert [record["lat_ms"]["p50"] for record in workspace.records(A)] == [1.0]


SLOWED = """
import os
for thread in map(int, os.listdir(f"/proc/{os.getppid()}/task")):
    os.sched_setaffinity(thread, {min(os.sched_getaffinity(0))})
"""


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_a_cell_that_takes_cores_from_kbt_has_no_result_and_others_have_all_cores(workspace):
    show = "import os\nprint(len(os.sched_getaffinity(0)))\n"
    workspace.cell(A, WRITE_MEASURED + SLOWED, MEASURING)
    workspace.cell(B, WRITE_MEASURED + show, MEASURING)
    workspace.build()

    assert workspace.result(A).status == "invalid"
    assert workspace.result(A).reason.startswith("cores, priority or limits of kbt were changed while it ran")
    assert workspace.text(workspace.result(B).stdout) == f"{CORES}\n"


LIMITS = {"RLIMIT_NOFILE": 300, "RLIMIT_AS": 2**45}
LIMITED = f"""
import os, resource
for name, limit in {LIMITS}.items():
    resource.prlimit(os.getppid(), getattr(resource, name), (limit, resource.getrlimit(getattr(resource, name))[1]))
"""


def test_a_cell_that_lowers_limits_of_kbt_has_no_result_and_others_have_the_usual_ones(workspace):
    show = f"import resource\nprint([resource.getrlimit(getattr(resource, name)) for name in {[*LIMITS]}])\n"
    workspace.cell(A, WRITE_MEASURED + LIMITED, MEASURING)
    workspace.cell(B, WRITE_MEASURED + show, MEASURING)
    workspace.build()

    assert workspace.result(A).status == "invalid"
    assert workspace.result(A).reason.startswith("cores, priority or limits of kbt were changed while it ran")
    assert workspace.result(B).status == "ok"
    usual = [resource.getrlimit(getattr(resource, name)) for name in LIMITS]
    assert usual[0][0] != LIMITS["RLIMIT_NOFILE"]
    assert workspace.text(workspace.result(B).stdout) == f"{usual}\n"


@pytest.mark.skipif(os.getuid() != 0, reason="gives up the right to raise limits")
def test_limits_that_cannot_be_raised_again_end_the_build():
    child = os.fork()
    if not child:
        os.setuid(65534)
        processes, said = run.Processes(), ""
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        try:
            processes.changes()
        except KbtError as error:
            said = str(error)
        os._exit("RLIMIT_NOFILE of kbt to (300, 300)" not in said)

    assert os.waitpid(child, 0)[1] == 0


SOURCES = "# /// script\n# [tool.uv.sources]\n# lib = { path = '../../lib' }\n# ///\n"


@pytest.mark.parametrize(
    ("file", "header", "what"),
    [("data.csv", "", "file data.csv"), ("lib/lib.py", SOURCES, "source of lib")],
)
def test_a_file_that_changes_while_a_cell_may_read_it_leaves_no_result(workspace, file, header, what):
    path = workspace.write(file, "1\n")
    needs = "" if header else f" needs=./{file}"
    workspace.cell(
        "n.md", f"{header}import pathlib\npathlib.Path({str(path)!r}).write_text('2')", f"id=a{needs}"
    )
    workspace.build()

    assert workspace.result("n.md").reason.startswith(f"{what} changed while it ran")
    assert workspace.build().started == ["n.md:a"]  # it is new, and stays the same
    assert workspace.result("n.md").status == "ok"
    assert workspace.build().started == []


def test_each_cell_has_its_own_cache_of_compiled_kernels(workspace, monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    show = "import os\nprint(os.environ['TRITON_CACHE_DIR'], os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
    for name in (A, B):
        workspace.cell(name, WRITE_MEASURED + show, MEASURING)

    def build():
        workspace.build(processes=2, rerun=True)
        seen = [workspace.text(workspace.result(name).stdout).split() for name in (A, B)]
        return [set(words) - {"---", "process", "2", "of"} for words in seen]

    first, second = build()
    assert len(first) == len(second) == 2
    assert first & second == {"/mine"}
    assert build() == [first, second]


def test_a_module_that_a_cell_puts_beside_scripts_is_imported_by_no_other_cell(workspace):
    plant = f"""
import pathlib
for name in ("colorsys", "sitecustomize", "usercustomize"):
    pathlib.Path({str(workspace.root)!r}, f"op/impls/.kbt/cells/{{name}}.py").write_text("print('planted')")
"""
    workspace.cell(A, WRITE_MEASURED + plant, MEASURING)
    workspace.cell(B, "import colorsys\n" + WRITE_MEASURED, MEASURING)
    workspace.build()

    assert [workspace.result(name).status for name in (A, B)] == ["ok", "ok"]
    assert not workspace.result(B).stdout
