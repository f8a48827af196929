"""Copies of this project that tests may change, and the command run in them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = (
    "index.md",
    "layer_norm",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "kernels_bench_tools",
    "templates",
)

Kbt = Callable[..., subprocess.CompletedProcess[str]]


def run_kbt(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder`` as a user would, in this interpreter's environment."""
    return subprocess.run(
        [sys.executable, "-m", "kernels_bench_tools", *arguments],
        cwd=folder,
        env=os.environ | {"USE_HUB_KERNELS": "0"} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def copy_project(destination: Path) -> Path:
    """Copy what a clone of this project holds that a build reads."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".kbt", ".uvnote")
            shutil.copytree(source, destination / name, ignore=ignored)
        else:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination / name)
    return destination


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project, built once on the smoke workloads. Tests must not change it."""
    folder = copy_project(tmp_path_factory.mktemp("built") / "project")
    done = run_kbt(folder, "build", "--env", "current", "--workloads", "smoke")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    """A built project that the test may change; it has been moved, which must rerun nothing."""
    return shutil.copytree(built, tmp_path / "moved", symlinks=True)


@pytest.fixture
def build(project: Path) -> Kbt:
    """``kbt build`` in the project, on the smoke workloads in this environment."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_kbt(project, "build", "--env", "current", "--workloads", "smoke", *arguments)

    return run


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A small project of its own without this one's notebooks."""
    folder = tmp_path / "bare"
    (folder / "softmax" / "impls").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Bare"\n')
    (folder / "softmax" / "impls" / "plain.md").write_text(
        "---\ntitle: Plain\nbaseline: true\n---\n\n```python id=benchmark outputs=softmax.jsonl\nprint('hi')\n```\n"
    )
    return folder


@pytest.fixture
def kbt(project: Path) -> Kbt:
    """Any ``kbt`` command in the project."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_kbt(project, *arguments)

    return run


@pytest.fixture
def kbt_in() -> Kbt:
    """Any ``kbt`` command in a given folder."""
    return run_kbt
