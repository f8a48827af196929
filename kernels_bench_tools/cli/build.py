"""``kbt build``: run what changed, then publish the report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.options import (
    Cluster,
    Env,
    EnvironmentChoice,
    Jobs,
    Json,
    MemoryLimit,
    Mode,
    ModeChoice,
    Output,
    PassEnv,
    Paths,
    Processes,
    Rerun,
    Strict,
    Workloads,
)
from kernels_bench_tools.cli.paths import shown
from kernels_bench_tools.cli.physics import complain_of_impossible
from kernels_bench_tools.cli.progress import PlainProgress, make_progress
from kernels_bench_tools.cluster import cluster_executor
from kernels_bench_tools.notebooks.limits import check_variable_names, read_size
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.report.changes import read_report
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.run.build import build as run_notebooks
from kernels_bench_tools.run.locks import project_lock
from kernels_bench_tools.schema.build import BuildRun, CellRun
from kernels_bench_tools.schema.record import Status

FAILURES = frozenset(Status) - {Status.OK, Status.UNSUPPORTED}


def build(
    paths: Paths = None,
    env: Env = EnvironmentChoice.UV,
    rerun: Rerun = False,
    workloads: Workloads = "",
    mode: Mode = ModeChoice.FWD,
    jobs: Jobs = 0,
    processes: Processes = 0,
    cluster: Cluster = "",
    memory_limit: MemoryLimit = "",
    pass_env: PassEnv = None,
    strict: Strict = False,
    output: Output = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            "--previous",
            metavar="FILE",
            help="report.json of an earlier report: the front page tells what has changed since.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Run every cell whose inputs changed, then publish the report to site/.

    With PATHs, only those notebooks and what they need run; the others are shown as they last ended.
    A cell that fails becomes a row with its reason, and everything else is published all the same. A row
    that is faster than physics allows is published, too, and then the exit code is 2.
    """
    project = find_project(Path.cwd())
    earlier = read_report(previous) if previous else None  # a mistake is told before anything runs
    options = BuildOptions(
        environment=env.value,
        rerun=rerun,
        workloads=workloads,
        mode=mode.value,
        processes=processes,
        executor=cluster_executor(cluster),
        **checked_limits(jobs, memory_limit, pass_env),
    )
    with project_lock(project, PlainProgress()):  # until the pages are made of what the cells left
        result = run_cells(project, paths or [], options)
        published = publish(project.root, result, output or project.root / "site", earlier)
    for link in published.dead_links:
        print(f"note: a link leads nowhere: {link}", file=sys.stderr)
    if json:
        print(msgspec.json.encode(build_as_data(result, published.index)).decode())
    else:
        print(summarize_build(result))
        print(shown(published.index))
    impossible = complain_of_impossible(project, finished_cells(result))
    return FAILURE if impossible or (strict and count_failures(result)) else 0


def checked_limits(jobs: int, memory_limit: str, pass_env: Sequence[str] | None) -> dict[str, Any]:
    """Return the fields of ``BuildOptions`` that are written otherwise on the command line.

    Args:
        jobs: How many cells to work on at once; as many as there are processors for 0.
        memory_limit: A size with its unit; empty for the project's setting.
        pass_env: Names of variables.

    Raises:
        ProjectError: One of them is wrong.
    """
    return {
        "jobs": jobs or os.cpu_count() or 1,
        "memory_limit": read_size("--memory-limit", memory_limit) if memory_limit else 0,
        "pass_env": check_variable_names("--pass-env", tuple(pass_env or ())),
    }


def run_cells(project: Project, targets: list[str], options: BuildOptions) -> BuildRun:
    """Run the notebooks that ``targets`` name, all if none, with progress on stderr."""
    with make_progress() as progress:
        return run_notebooks(project, targets, options, progress)


def finished_cells(result: BuildRun) -> list[tuple[str, CellRun]]:
    """Return ``notebook:cell`` and run of each cell that has ended, in this build or an earlier one."""
    return [
        (f"{notebook.path}:{cell.id}", cell)
        for notebook in result.notebooks
        for cell in notebook.cells
        if cell.status is not None
    ]


def count_failures(result: BuildRun) -> int:
    """Return how many cells failed; one that is unsupported here did not."""
    return sum(cell.status in FAILURES for _, cell in finished_cells(result))


def summarize_build(result: BuildRun) -> str:
    """Return one line that counts what ran, what was cached and what failed."""
    cells = [cell for _, cell in finished_cells(result)]
    unsupported = sum(cell.status is Status.UNSUPPORTED for cell in cells)
    started = [cell for cell in cells if cell.exit_code is not None or cell.status is not Status.UNSUPPORTED]
    cached = sum(cell.cached for cell in started)
    ran = len(started) - cached
    return f"{ran} cells ran, {cached} unchanged, {unsupported} unsupported here, {count_failures(result)} failed"


def build_as_data(result: BuildRun, index: Path) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "index": str(index),
        "device": result.device,
        "cells": [
            {
                "cell": name,
                "status": cell.status,
                "reason": cell.reason,
                "cached": cell.cached,
                "seconds": round(cell.seconds, 3),
                "exit_code": cell.exit_code,
            }
            for name, cell in finished_cells(result)
        ],
    }
