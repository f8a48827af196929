"""Options that several verbs share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kernels_bench_tools.notebooks.project import check_variable_names, read_memory_limit

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Notebooks, folders or OPERATOR/IMPLEMENTATION. [default: all]"),
]
Env = Annotated[
    Literal["uv", "current"],
    typer.Option(
        "--env",
        help="Environment of cells. `uv`: a separate one for each cell, from its header. `current`: this Python "
        "interpreter, for machines whose torch must not be replaced.",
    ),
]
Workloads = Annotated[
    str,
    typer.Option(
        "--workloads",
        metavar="SETS",
        help="Workload sets to measure, such as `smoke` or `default,decode`. "
        "[default: `default,large,decode` on a GPU, `cpu` on a CPU]",
    ),
]
Mode = Annotated[
    Literal["fwd", "bwd", "fwd_bwd"],
    typer.Option(
        "--mode",
        help="What to time. `fwd`: forward pass. `bwd`: backward pass only. `fwd_bwd`: both together.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=0,
        metavar="N",
        help="Maximum number of environments to prepare and of non-measuring cells to run in parallel; 0 means one "
        "per core. Measuring cells always run alone.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        "--processes",
        min=0,
        metavar="N",
        help="Number of new processes for each measuring cell. Processes of one operator's cells are interleaved. "
        "[default: 3 for `build` on a GPU; 1 on a CPU, for `run`, and for `--workloads smoke`]",
        show_default=False,
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Run cells on the workers of a Dask scheduler, such as tcp://host:8786 (see `kbt workers`). Results are "
        "stored in this project's cache.",
    ),
]
Rerun = Annotated[
    bool, typer.Option("--rerun", help="Run the selected cells even if their inputs did not change.")
]
RetryFailed = Annotated[
    bool,
    typer.Option(
        "--retry-failed",
        help="Run failed cells, and cells with wrong kernels, again even if nothing about them has changed.",
    ),
]
MemoryLimit = Annotated[
    str,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="Memory limit for all processes of a cell, such as `16GB`. A cell over the limit is stopped with status "
        "`oom`. [default: `memory_limit` of \\[tool.kbt], or 90 % of the machine's memory]",
    ),
]
PassEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-env",
        metavar="NAME",
        help="Pass this environment variable, such as `HF_TOKEN`, to cells. Repeatable. By default cells get only "
        "variables that programs need (paths, CUDA, torch, threads, proxies, caches).",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Count cells that are unsupported here as failed: exit with 1.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print a line for each cell that this machine cannot run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the report. [default: site]"),
]


def checked_limits(jobs: int, memory_limit: str, pass_env: Sequence[str] | None) -> dict[str, Any]:
    """Return the fields of ``BuildOptions`` for these three options."""
    return {
        "jobs": jobs or os.cpu_count() or 1,
        "memory_limit": read_memory_limit("--memory-limit", memory_limit) if memory_limit else 0,
        "pass_env": check_variable_names("--pass-env", tuple(pass_env or ())),
    }
