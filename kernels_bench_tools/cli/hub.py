"""``kbt hub``: build kernels of the Hub from source."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from kernels_bench_tools.cli import EXIT_CODES
from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.own_folders import output_folder
from kernels_bench_tools.own_process import run_module
from kernels_bench_tools.records.hub import BUILDS_VARIABLE, BuildRequest, builds_folder

MODULE = "kernels_bench_tools.hub.build"

hub = typer.Typer(no_args_is_help=True, help="Build kernels of the Hugging Face Hub from source.")


@hub.callback()
def _hub() -> None:
    pass


@hub.command("build")
def build(
    sources: Annotated[list[str], typer.Argument()],
    backend: Literal["cuda", "cpu"] | None = None,
    arch: list[str] | None = None,
    only: list[str] | None = None,
    commit: str = "",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0)] = 0,
    output: Path | None = None,
) -> int:
    """Compile kernels for the torch of this Python interpreter.

    Cells then load these builds instead of the Hub's. build.toml defines what is compiled; kernels in Python are only
    copied. After an interruption or an edit, run it again: it compiles missing and changed files. Functions of files that
    are left out raise an error when called.

    Args:
        sources (PATH): Source folders, such as those of https://github.com/huggingface/kernels-community.
        backend: Kind of device. [default: that of torch]
        arch (X.Y): CUDA compute capability, such as 9.0a. Repeatable. [default: this GPU's]
        only (PATTERN): CUDA files to compile, such as `*fwd*hdim128*`. Repeatable.
        commit (SHA): Commit of sources outside a Git repository.
        jobs (N): Files to compile in parallel; 0 means one per core.
        output (FOLDER): Folder of the builds. [default: KBT_HUB_BUILDS or hub_builds of the project]
    """
    for package, advice in (
        ("torch", "the torch of your cells, since a build is for one version of torch"),
        ("kernels", "kernels-bench-tools[hub]"),
    ):
        if importlib.util.find_spec(package) is None:
            remedy = f"Install {advice}, beside kbt. In a checkout: `uv run --group torch --extra hub kbt hub build`"
            raise KbtError("hub build", f"the package {package} is not installed", "", remedy)
    folder = output.absolute() if output else builds_folder(Path.cwd())
    output_folder(folder if output or os.environ.get(BUILDS_VARIABLE) else None, folder)
    request = BuildRequest(
        sources=sources,
        output=str(folder),
        backend=backend or "",
        archs=arch or [],
        only=only or [],
        commit=commit,
        jobs=jobs or len(os.sched_getaffinity(0)),
    )
    # In a separate process, because the command does not import torch.
    text = msgspec.json.encode(request).decode()
    return run_module("hub build", MODULE, text, codes=EXIT_CODES, network=True)
