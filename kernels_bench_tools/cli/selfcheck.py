"""``kbt selfcheck``: check the accuracy of measurements on this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Annotated, Literal

import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.output import short_path
from kernels_bench_tools.errors import KbtError, ProjectError
from kernels_bench_tools.file_io import check_writable, write_atomically
from kernels_bench_tools.git import Checkout
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.own_process import PACKAGE_FOLDER, PYTHON, module_variables, python_command
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.selfcheck import FOLDER
from kernels_bench_tools.run.environment.base import UvEnvironment, ignore_folder
from kernels_bench_tools.run.environment.variables import uv_variables
from kernels_bench_tools.run.process.run import Processes

MODULE = "kernels_bench_tools.selfcheck"
_HEADER = """\
# /// script
# requires-python = ">=3.11"
# dependencies = ["msgspec", "numpy", "torch"]
# ///
"""


def selfcheck(
    env: Literal["uv", "current"] | None = None,
    quick: bool = False,
    processes: Annotated[int | None, typer.Option(min=0)] = None,
    ncu: str = "ncu",
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
) -> int:
    """Check the accuracy of measurements on this machine.

    Times empty calls and others, and compares with Nsight Compute and between processes. The report shows the results.

    Args:
        env: Where torch comes from. `current`: this Python interpreter. `uv`: a new environment. [default:
            `current` if it has torch]
        quick: Fewer calls, 3 processes; no slowdown is tested.
        processes (N): Number of new processes. [default: 10]
        ncu (PROGRAM): Nsight Compute; empty to skip it.
        output (FILE): Output file. [default: selfcheck/DEVICE.json]
    """
    project = find_project(Path.cwd())
    target = output or project.root / FOLDER / f"{current_device().slug}.json"
    if target.is_dir():
        raise ProjectError(str(target), "is a folder", "A file to write")
    check_writable(target.parent)  # before minutes of measuring
    arguments = ["--ncu", ncu, "--commit", Checkout(project.root).commit]
    arguments += ["--quick"] if quick else []
    arguments += ["--processes", str(processes)] if processes is not None else []
    # Kept there if it is interrupted: it takes minutes, and partial results are useful.
    answer = project.state / "selfcheck.json"
    ignore_folder(project.state)
    answer.unlink(missing_ok=True)
    with temporary_folder() as folder:
        python = _find_python(env, folder)
        command = python_command("-m", MODULE, "--output", str(answer), *arguments, python=python)
        # A link, so that nothing else that is next to this package can be imported.
        package = folder / "path" / PACKAGE_FOLDER.name
        package.parent.mkdir()
        package.symlink_to(PACKAGE_FOLDER)
        variables = module_variables(uv_variables(os.environ), package.parent)
        code = subprocess.run(command, env=variables, check=False).returncode
    if code not in {0, 2} or not answer.is_file():
        raise KbtError("selfcheck", f"its process ended with exit code {code}", "", "See its output above")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, answer.read_bytes())
    print(f"\nwritten: {short_path(target)}")
    return FAILURE if code else 0


def _find_python(env: str | None, folder: Path) -> str:
    """Return the path of a Python interpreter with torch."""
    has_torch = importlib.util.find_spec("torch") is not None
    if env == "current" and not has_torch:
        raise ProjectError("--env current", "this interpreter has no torch", "", "Use `--env uv`")
    if env == "current" or (env is None and has_torch):
        return PYTHON
    script = folder / "environment.py"
    script.write_text(_HEADER, encoding="utf-8")
    prepared = UvEnvironment().prepare(script, folder, folder / "environment.log", Processes())
    if prepared.reason:
        raise ProjectError("--env uv", f"there is no environment with torch: {prepared.reason}")
    return prepared.python
