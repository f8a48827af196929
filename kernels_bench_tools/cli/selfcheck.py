"""``kbt selfcheck``: check the accuracy of measurements on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.output import short_path
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import check_writable, read_struct, write_struct
from kernels_bench_tools.git import Checkout
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.own_folders import output_folder, temporary_folder
from kernels_bench_tools.own_process import run_module
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.selfcheck import FOLDER, SelfCheck
from kernels_bench_tools.run.process.reaper import reaper

MODULE = "kernels_bench_tools.selfcheck"
QUICK_PROCESSES, PROCESSES = 3, 10


def selfcheck(
    quick: bool = False,
    processes: Annotated[int | None, typer.Option(min=0)] = None,
    ncu: str = "ncu",
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
) -> int:
    """Check the accuracy of measurements on this machine.

    Measures the overhead of empty calls, and compares times with Nsight Compute and between processes. The report shows
    the results. Requires torch in this Python interpreter.

    Args:
        quick: Time fewer calls, in 3 processes, and skip the tests of verdicts.
        processes (N): Number of fresh processes. [default: 10]
        ncu (PROGRAM): Path of Nsight Compute; empty to skip it.
        output (FILE): Output file. [default: selfcheck/DEVICE.json]
    """
    project = find_project()
    target = output or project.root / FOLDER / f"{current_device().slug}.json"
    if target.is_dir():
        raise ProjectError(str(target), "is a folder", "A file to write")
    check_writable(target.parent)  # before minutes of measuring
    if importlib.util.find_spec("torch") is None:
        raise ProjectError(
            "selfcheck",
            "torch is not installed in this interpreter",
            "",
            "`uv run --with torch kbt selfcheck` adds it",
        )
    output_folder(output and output.parent, project.root / FOLDER)
    commit = Checkout(project.root).commit
    if processes is None:
        processes = QUICK_PROCESSES if quick else PROCESSES
    with temporary_folder(reaper().folder) as folder:
        answer = folder / "selfcheck.json"
        run_module("selfcheck", MODULE, str(answer), ncu, str(processes), *(["quick"] if quick else []))
        result = read_struct(answer, SelfCheck)
    result.commit = commit
    write_struct(target, result)
    print(f"\nwritten: {short_path(target)}")
    return 0 if all(check.passed for check in result.checks) else FAILURE
