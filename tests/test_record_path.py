"""The life of a record: the modules that it passes from the call that measures it to a number on its operator's page."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from projects import PYTHON, ROOT, copy_project

TRACER = ROOT / "tests/shared/record_tracer/sitecustomize.py"
MOST = 24


def listed_modules() -> set[str]:
    """Return the modules that CONTRIBUTING lists as the life of a record."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## The life of a record\n")[2].partition("\n## ")[0]
    paths = [path for path in re.findall(r"`([a-z_/]+)\.py`", section) if not path.startswith("tests/")]
    return {f"kernels_bench_tools.{path.replace('/', '.')}" for path in paths}


def test_a_record_passes_the_modules_that_contributing_lists(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    shutil.rmtree(project / "layer_norm/results/records")  # drawing those of other devices takes long
    for notebook in (project / "layer_norm/impls").glob("*.md"):
        if notebook.stem != "torch_layer_norm":
            notebook.unlink()
    tracer = tmp_path / "tracer"
    tracer.mkdir()
    shutil.copy(TRACER, tracer)
    build = ("build", "layer_norm", "--env", "current", "--workloads", "smoke")

    done = subprocess.run(
        [PYTHON, "-m", "kernels_bench_tools", *build],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(tracer)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    passed = {line for file in tracer.glob("*.modules") for line in file.read_text().split()}
    assert sorted(passed - listed_modules()) == sorted(listed_modules() - passed) == []
    assert len(passed) <= MOST
