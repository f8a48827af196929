"""Copies of this project, the command run in them, and folders that the workers of a test run share."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

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


def run_kbt(
    folder: Path, *arguments: str, timeout: int = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder`` as a user would, in this interpreter's environment."""
    return subprocess.run(
        [sys.executable, "-m", "kernels_bench_tools", *arguments],
        cwd=folder,
        env=os.environ | {"USE_HUB_KERNELS": "0"} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
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
    _accept_waits(destination / "kernels_bench_tools/measure/timing/cpu.py")
    return destination


def _accept_waits(timer: Path) -> None:
    """Let results count that were measured while other tests kept the cores busy."""
    text, limit = timer.read_text(), "\nMIN_WAITING_SECONDS = 0.01\n"
    assert limit in text
    timer.write_text(text.replace(limit, "\nMIN_WAITING_SECONDS = float('inf')\n"))


def once_per_run(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make`` fills once per test run: the other workers wait for it and use the same one."""
    base = factory.getbasetemp()
    # The workers of a run have folders side by side; without workers, those next to it are of other runs.
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / name
    with FileLock(base / f"{name}.lock"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
    return folder
