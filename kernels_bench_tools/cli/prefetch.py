"""``kbt prefetch``: fetch hub kernels now, so that cells need no hub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.paths import shown
from kernels_bench_tools.errors import KbtError, ProjectError
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.kernel_calls import find_kernel_calls
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.run.environment.base import PACKAGE_FOLDER
from kernels_bench_tools.run.environment.variables import cache_variables
from kernels_bench_tools.schema.hub import LOCK_FILE, FetchedKernel, KernelRequest

MODULE = "kernels_bench_tools.hub.prefetch"


def prefetch(
    references: Annotated[
        list[str] | None,
        typer.Argument(metavar="[REFERENCE]...", help="Such as kernels-community/activation@1."),
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock", help="Where to write what was fetched. [default: kernels.lock of the project]"
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="ORG", help="A publisher to trust though the hub does not say so."),
    ] = None,
) -> int:
    """Fetch hub kernels for this machine and lock them; cells then need no hub. Exit with 2 if one failed.

    Without references: every kernel that a notebook's get_kernel("...") names. It runs in this interpreter,
    whose torch decides which build of a kernel fits.
    """
    if lock is None:
        lock = find_project(Path.cwd()).root / LOCK_FILE
    wanted = [KernelRequest(reference=one, trust=list(trust or [])) for one in references or []]
    if not references:
        wanted = _from_notebooks(list(trust or []))
    if not wanted:
        print("no notebook asks for a hub kernel by a literal reference", file=sys.stderr)
        return 0
    return _fetch(wanted, lock)


def _describe(fetched: FetchedKernel) -> str:
    if fetched.reason or fetched.status != "ok":
        return f"✗ {fetched.reference}  {fetched.reason} [{fetched.status}]"
    notes = "".join(f"\n    {note}" for note in fetched.notes)
    return f"✓ {fetched.reference}  {fetched.variant} of {fetched.commit[:12]}{notes}"


def _from_notebooks(trust: Sequence[str]) -> list[KernelRequest]:
    """Return what the project's notebooks ask for, once each."""
    project = find_project(Path.cwd())
    found: dict[bytes, KernelRequest] = {}
    for path in project.notebook_paths():
        for call in find_kernel_calls(read_notebook(project, path)):
            if call.reference is None:
                print(f"{call.where}: its reference is not a literal; left out", file=sys.stderr)
                continue
            try:
                wanted = msgspec.convert({**call.settings, "reference": call.reference}, KernelRequest)
            except msgspec.ValidationError as error:
                raise ProjectError(call.where, f"get_kernel has arguments of other types ({error})") from None
            wanted.trust += [one for one in trust if one not in wanted.trust]
            found.setdefault(msgspec.json.encode(wanted), wanted)
    return list(found.values())


def _fetch(wanted: Sequence[KernelRequest], lock: Path) -> int:
    """Fetch in a process of its own, because nothing here imports torch; print a line for each."""
    # Unlike a cell, it needs the user's token where a kernel is not public.
    variables = {**os.environ, **cache_variables(os.environ), "PYTHONUNBUFFERED": "1"}
    paths = [variables.get("PYTHONPATH", ""), str(PACKAGE_FOLDER.parent)]
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    variables.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    command = [sys.executable, "-m", MODULE, str(lock.absolute())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(wanted))
        process.stdin.close()
        print(f"asking the hub for {len(wanted)} kernels", file=sys.stderr)
        locked = 0
        for line in process.stdout:
            fetched = msgspec.json.decode(line, type=FetchedKernel)
            print(_describe(fetched), file=sys.stdout if fetched.status == "ok" else sys.stderr, flush=True)
            locked += fetched.status == "ok"
        code = process.wait()
    if code not in {0, FAILURE}:
        raise KbtError("kbt prefetch", "did not end well", "", "What it said is above")
    print(f"{locked} locked in {shown(lock)}" if locked else "nothing was locked")
    return code
