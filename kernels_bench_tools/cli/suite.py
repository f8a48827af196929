"""``kbt suite``: several operators' kernels as one table, ours beside the baselines."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.build import (
    checked_limits,
    count_failures,
    finished_cells,
    run_cells,
    summarize_build,
)
from kernels_bench_tools.cli.options import (
    Cluster,
    Env,
    EnvironmentChoice,
    Jobs,
    Json,
    MemoryLimit,
    Output,
    PassEnv,
    Processes,
    Rerun,
    Strict,
)
from kernels_bench_tools.cli.paths import shown
from kernels_bench_tools.cli.physics import complain_of_impossible
from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.cluster import cluster_executor
from kernels_bench_tools.errors import ProjectError, SuiteError
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.run.locks import project_lock
from kernels_bench_tools.schema.build import BuildRun
from kernels_bench_tools.schema.device import current_device
from kernels_bench_tools.schema.suite import Suite, SuiteReport, read_suite
from kernels_bench_tools.summarize.suite import report_text
from kernels_bench_tools.text import did_you_mean

FOLDER = "suites"
REPORT = "suite.json"


class DeviceChoice(StrEnum):
    """What is measured on."""

    CUDA = "cuda"
    CPU = "cpu"


def suite(
    name: Annotated[
        str, typer.Argument(metavar="SUITE", help="Name of a file in suites/, such as `trainscale`.")
    ],
    device: Annotated[
        DeviceChoice | None,
        typer.Option(
            "--device", help="What to measure on. [default: the GPU if there is one]", show_default=False
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also on a CPU the suite's own shapes, which take hours there.")
    ] = False,
    env: Env = EnvironmentChoice.UV,
    rerun: Rerun = False,
    jobs: Jobs = 0,
    processes: Processes = 0,
    cluster: Cluster = "",
    memory_limit: MemoryLimit = "",
    pass_env: PassEnv = None,
    strict: Strict = False,
    output: Output = None,
    json: Json = False,
) -> int:
    """Measure a suite: kernels of several operators in one table, ours beside the baselines.

    Every implementation of the suite's operators is measured on the suite's workloads; a CPU has smaller ones. The
    table is printed, and published with the report as a page, as Markdown and as CSV. A kernel that cannot run here
    is a row that says why. What a build has measured is not measured again.
    """
    project = find_project(Path.cwd())
    chosen = _find(project, name)
    if device is not None:
        _use(device, cluster)
    options = BuildOptions(
        environment=env.value,
        rerun=rerun,
        workloads=_sets(chosen, full=full, cluster=cluster),
        processes=processes,
        executor=cluster_executor(cluster),
        **checked_limits(jobs, memory_limit, pass_env),
    )
    notebook = f"{FOLDER}/{name}.md"
    targets = [*(f"{operator}/impls" for operator in chosen.operators), notebook]
    with project_lock(project, PlainProgress()):  # until the pages are made of what the cells left
        result = run_cells(project, targets, options)
        published = publish(project.root, result, output or project.root / "site")
    report = _report(project, result, notebook)
    here = [one for one in report.devices if one.slug == result.device.slug]
    report = msgspec.structs.replace(report, devices=here)
    if json:
        print(msgspec.json.encode(report).decode())
    else:
        print(report_text(report))
        print(summarize_build(result))
        for link in published.dead_links:
            print(f"note: a link leads nowhere: {link}", file=sys.stderr)
        print(shown(published.index.parent / FOLDER / f"{name}.html"))
    impossible = complain_of_impossible(project, finished_cells(result))
    return FAILURE if impossible or (strict and count_failures(result)) else 0


def _find(project: Project, name: str) -> Suite:
    folder = project.root / FOLDER
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        hint = f"The suites are {', '.join(known)}" if known else f"A suite is a file {FOLDER}/NAME.toml"
        raise SuiteError(name, "there is no such suite", "", did_you_mean(name, known, hint))
    found = read_suite(folder / f"{name}.toml")
    for operator in found.operators:
        if not (project.root / operator / "impls").is_dir():
            raise SuiteError(
                f"{name}.toml", f"there is no operator {operator!r}", "", "`kbt list` shows them"
            )
    if not (folder / f"{name}.md").is_file():
        raise SuiteError(f"{FOLDER}/{name}.md", "is missing", "The notebook that reports the suite")
    return found


def _use(device: DeviceChoice, cluster: str) -> None:
    """Have this build, and all that it starts, see only such a device."""
    if cluster:
        raise ProjectError(
            f"--device {device}", "says nothing with --cluster", "", "The workers have their devices"
        )
    if device is DeviceChoice.CPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif current_device().kind != device:
        raise ProjectError(
            f"--device {device}",
            "there is no such device here",
            "",
            "`--device cpu` measures what a CPU can run",
        )


def _sets(suite: Suite, *, full: bool, cluster: str) -> str:
    kind = "cuda" if cluster else current_device().kind
    return suite.workloads if full else suite.rows_by_set(kind)[0][0]


def _report(project: Project, result: BuildRun, notebook: str) -> SuiteReport:
    """Return what the suite's cell left.

    Raises:
        SuiteError: It left nothing.
    """
    cells = [cell for entry in result.notebooks if entry.path == notebook for cell in entry.cells]
    for cell in cells:
        if REPORT in cell.artifacts:
            return msgspec.json.decode((project.root / cell.artifacts[REPORT]).read_bytes(), type=SuiteReport)
    reason = next((cell.reason for cell in cells if cell.reason), f"none of its cells left {REPORT}")
    raise SuiteError(notebook, reason, "A cell that calls report_suite()", f"`kbt run {notebook}` shows more")
