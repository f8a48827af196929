"""Options that several verbs share, each with one spelling and one explanation."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EnvironmentChoice(StrEnum):
    """Where a cell's packages come from."""

    UV = "uv"
    CURRENT = "current"


class ModeChoice(StrEnum):
    """What is timed."""

    FWD = "fwd"
    BWD = "bwd"
    FWD_BWD = "fwd_bwd"


Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Notebooks, folders or OPERATOR/IMPLEMENTATION. [default: all]"),
]
Env = Annotated[
    EnvironmentChoice,
    typer.Option(
        "--env",
        help="`uv`: each cell in its own environment, from its own header. "
        "`current`: this interpreter as it is, for a machine whose torch must not be replaced.",
    ),
]
Workloads = Annotated[
    str,
    typer.Option(
        "--workloads",
        metavar="SETS",
        help="The operator's workload sets to measure, such as `smoke` or `default,decode`. "
        "[default: `default,large,decode` on a GPU, `cpu` on a CPU]",
        show_default=False,
    ),
]
Mode = Annotated[
    ModeChoice,
    typer.Option(
        "--mode",
        help="`fwd`: the forward pass. `bwd`: the backward pass alone, where autograd has one. "
        "`fwd_bwd`: both together.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        min=0,
        help="How many environments and unmeasured cells to work on at once; 0 means one per core. "
        "Measuring cells always run alone.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        "--processes",
        min=0,
        metavar="N",
        help="In how many fresh processes to run each cell that measures, those of one operator taking turns. "
        "[default: 3 for `build` on a GPU; 1 on a CPU, for `run` and for `--workloads smoke`]",
        show_default=False,
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Run the cells on the workers of a Dask scheduler, such as tcp://host:8786 (see `kbt workers`); "
        "results come back into this project's cache. A cluster runs the code that it is sent.",
        show_default=False,
    ),
]
Rerun = Annotated[
    bool, typer.Option("--rerun", help="Run the named cells again even if nothing they depend on changed.")
]
MemoryLimit = Annotated[
    str,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="How much memory the processes of one cell may hold together, such as `16GB`; over it the cell ends as "
        "`oom`. [default: `memory_limit` of \\[tool.kbt], else 90 % of the machine's]",
        show_default=False,
    ),
]
PassEnv = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-env",
        metavar="NAME",
        help="Give cells this variable of yours, such as `HF_TOKEN`. Repeatable. Cells get what programs need to run "
        "(paths, CUDA, torch, threads, proxies, caches), and nothing that looks like a credential.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Also exit with 2 if a cell failed.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Where to put the report. [default: site]")
]
