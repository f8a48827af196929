"""What a build does for many notebooks: each thing once, in a good order, and nothing that is not needed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.trees import Layout, make_tree  # noqa: E402


def test_a_generated_tree_builds_with_one_environment(workspace):
    count = 4
    make_tree(workspace.root, count, Layout.FOLDERS)
    recorder = workspace.build(environment="uv")

    assert len(recorder.started) == count + 1
    assert len(recorder.environments) == 1
    run = workspace.result("combined.md", "combine")
    assert run.status == "ok"
    assert workspace.text(run.stdout) == f"{count} notebooks, total {sum(45 * n for n in range(count))}\n"
    assert workspace.build(environment="uv").started == []


def test_environments_are_ready_before_anything_runs(workspace):
    for number in range(3):
        header = f'# /// script\n# dependencies = []\n# requires-python = ">=3.{number}"\n# ///\n'
        workspace.cell(f"n{number}.md", header)
    told = workspace.build(environment="uv")

    assert (told.ready, len(told.environments), len(told.started)) == (3, 3, 3)


def test_a_build_in_which_nothing_changed_imports_little(workspace):
    make_tree(workspace.root, 2)
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sorted(sys.modules), file=open('modules.txt', 'w')))\n"
        "from kernels_bench_tools.cli import main\nmain()\n"
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    environ.pop("FORCE_COLOR", None)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, "build", "--env", "current"],
            cwd=workspace.root,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    modules = set((workspace.root / "modules.txt").read_text().split())
    heavy = {"torch", "numpy", "matplotlib", "jinja2", "distributed", "rich.console", "psutil"}
    assert modules & heavy == set()
    assert not {name for name in modules if name.startswith("kernels_bench_tools.cli.")} & {
        f"kernels_bench_tools.cli.{name}" for name in ("serve", "selfcheck", "record", "run", "tables")
    }
