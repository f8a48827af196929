"""``kbt hub`` and ``kbt prefetch``: build kernels of the Hub from source, and download them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from kernels_bench_tools.cli import FAILURE, INTERRUPTED, USER_MISTAKE
from kernels_bench_tools.cli.output import note, short_path, survey_notebooks
from kernels_bench_tools.errors import KbtError, ProjectError
from kernels_bench_tools.notebooks.calls import find_kernel_calls
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.own_process import module_variables, python_command
from kernels_bench_tools.records.hub import (
    LOCK_FILE,
    BuildRequest,
    FetchedKernel,
    KernelRequest,
    builds_folder,
)
from kernels_bench_tools.run.environment.variables import cache_variables
from kernels_bench_tools.text import plural

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

    Cells then load these builds without the Hub. Reads build.toml; kernels in Python are only copied. Run again after
    an interruption or an edit, it compiles what is missing or changed. Functions whose files are left out raise an
    error when they are called.

    Args:
        sources (PATH): Source folders, such as those of https://github.com/huggingface/kernels-community.
        backend: Kind of device. [default: that of torch]
        arch (X.Y): CUDA compute capability, such as 9.0a. Repeatable. [default: this GPU's]
        only (PATTERN): CUDA files to compile, such as `*fwd*hdim128*`. Repeatable.
        commit (SHA): Commit of sources that are in no Git repository.
        jobs (N): Files to compile in parallel; 0 means one per core.
        output (FOLDER): Folder of the builds. [default: KBT_HUB_BUILDS or hub_builds of the project]
    """
    for package, advice in (
        ("torch", "the torch of your cells, since a build is for one version of torch"),
        ("kernels", "kernels-bench-tools[hub]"),
    ):
        if importlib.util.find_spec(package) is None:
            remedy = f"Install {advice}, beside kbt. In a checkout: `uv run --group torch --extra hub kbt hub build`"
            raise KbtError("hub build", f"needs the package {package}, which is not installed", "", remedy)
    folder = output.absolute() if output else builds_folder(Path.cwd())
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
    command = python_command("-m", MODULE, msgspec.json.encode(request).decode())
    variables = module_variables(os.environ, network=True)
    code = subprocess.run(command, env=variables, check=False).returncode
    if code not in {0, USER_MISTAKE, FAILURE, INTERRUPTED}:
        raise KbtError("hub build", f"its process ended with exit code {code}", "", "See its output above")
    return code


def prefetch(
    references: Annotated[list[str] | None, typer.Argument()] = None,
    lock: Path | None = None,
    trust: list[str] | None = None,
) -> int:
    """Download kernels of the Hugging Face Hub and write kernels.lock.

    Cells then load these kernels without the Hub. Without references, downloads every kernel that a notebook
    requests with a literal get_kernel("..."). Builds are selected for the torch of this Python interpreter.

    Args:
        references (REFERENCE): Such as kernels-community/activation@1. [default: those in notebooks]
        lock (FILE): Lock file to write. [default: kernels.lock of the project]
        trust (ORG): Publisher to trust although the Hub does not list it as trusted. Repeatable.
    """
    if lock is None:
        lock = find_project(Path.cwd()).root / LOCK_FILE
    wanted = [KernelRequest(reference=each, trust=list(trust or [])) for each in references or []]
    if not references:
        wanted = _from_notebooks(list(trust or []))
    if not wanted:
        note("no notebook requests a hub kernel with a literal reference")
        return 0
    return _fetch(wanted, lock)


def _from_notebooks(trust: Sequence[str]) -> list[KernelRequest]:
    """Return the kernels that the project's notebooks request, once each."""
    project = find_project(Path.cwd())
    requests: dict[bytes, KernelRequest] = {}
    for notebook in survey_notebooks(project, project.notebook_paths()):
        for call in find_kernel_calls(notebook):
            if call.reference is None:
                note(f"{call.where}: its reference is not a literal; skipped")
                continue
            if not call.is_pinned:  # as `kernels` allows
                note(f"{call.where}: its reference has no version; skipped. Add one, such as @1.")
                continue
            try:
                wanted = msgspec.convert({**call.settings, "reference": call.reference}, KernelRequest)
            except msgspec.ValidationError as error:
                raise ProjectError(call.where, f"get_kernel has arguments of other types ({error})") from None
            wanted.trust += [publisher for publisher in trust if publisher not in wanted.trust]
            requests.setdefault(msgspec.json.encode(wanted), wanted)
    return list(requests.values())


def _fetch(wanted: Sequence[KernelRequest], lock: Path) -> int:
    """Fetch in a separate process, because the command does not import torch; print a line for each."""
    # A kernel that is not public needs the user's token.
    variables = module_variables(os.environ, network=True)
    variables |= {**cache_variables(os.environ), "PYTHONUNBUFFERED": "1"}
    variables.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    command = python_command("-m", "kernels_bench_tools.hub.prefetch", str(lock.absolute()))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(wanted))
        process.stdin.close()
        print(f"fetching {plural(len(wanted), 'kernel')} from the hub", file=sys.stderr)
        locked = 0
        for line in process.stdout:
            fetched = msgspec.json.decode(line, type=FetchedKernel)
            ok = fetched.status == "ok"
            if fetched.reason or not ok:
                told = f"✗ {fetched.reference}  {fetched.reason} [{fetched.status}]"
            else:
                notes = "".join(f"\n    {note}" for note in fetched.notes)
                told = f"✓ {fetched.reference}  {fetched.variant} of {fetched.commit[:12]}{notes}"
            print(told, file=sys.stdout if ok else sys.stderr, flush=True)
            locked += ok
        code = process.wait()
    if code not in {0, 2, 3}:
        raise KbtError("prefetch", f"its process ended with exit code {code}", "", "See its output above")
    if code == 2 and importlib.util.find_spec("kernels") is None:
        advice = "install kernels-bench-tools[hub] and the torch of your cells beside kbt"
        note(f"{advice}. In a checkout: `uv run --group torch --extra hub kbt prefetch`")
    print(f"{locked} locked in {short_path(lock)}" if locked else "nothing was locked")
    # It has printed the user's mistakes.
    return {0: 0, 2: FAILURE, 3: USER_MISTAKE}[code]
