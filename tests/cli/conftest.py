"""Copies of this project, and the command run in them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from projects import Kbt, copy_built, copy_project, once_per_run, run_kbt

QUICK = (
    (
        "timing/measure.py",
        "warmup_seconds=0.2, sample_seconds=0.5",
        "warmup_seconds=0.05, sample_seconds=0.1",
    ),
    (
        "timing/measure.py",
        "warmup_seconds=10.0, min_warmup_seconds=2.0, sample_seconds=2.0",
        "warmup_seconds=1.0, min_warmup_seconds=0.2, sample_seconds=0.2",
    ),
)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this project, built once on the smoke workloads for all workers of a test run. Tests must not change it."""

    def build(folder: Path) -> None:
        project = copy_project(folder / "project", *QUICK)
        compiled = project / "layer_norm" / "impls" / "torch_compiled_layer_norm.md"
        for name in ("hf_kernels", "liger", "quack"):  # no more supported here than the one in Triton
            (project / "layer_norm" / "impls" / f"{name}_layer_norm.md").unlink()
        shutil.rmtree(project / "layer_norm/results/records")  # drawing those of other devices takes long
        # A second implementation for the CPU; compiling would take longer than all other cells together.
        text = compiled.read_text().replace("requires: [cuda]\n", "")
        compiled.write_text(text.replace("dynamic=False", 'backend="eager"'))
        done = run_kbt(project, "build", "--env", "current", "--workloads", "smoke")
        assert "site/index.html" in done.stdout, done.stderr  # on a busy machine, a kernel may be rejected

    return once_per_run(tmp_path_factory, "built", build) / "project"


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    """A built project that the test may change; it has been moved, which must rerun nothing."""
    return copy_built(built, tmp_path / "moved")


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
