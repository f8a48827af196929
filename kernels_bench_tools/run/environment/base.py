"""How a cell's process is started: in an environment of its own, or in the one that runs ``kbt``.

With ``uv``, ``uv sync --script`` builds the environment that the script's header asks for, exactly, and
the cell is then started by that environment's own python. ``uv run`` would do both at once, but then its
output would mix with the cell's, its time with the cell's, and a timeout would end uv and not the cell.
"""

from __future__ import annotations

import os
import platform
import site
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.header import with_header
from kernels_bench_tools.run.environment.shared import installed_packages, shared_script
from kernels_bench_tools.run.environment.uv import find_uv, synced_python, uv_reason
from kernels_bench_tools.run.environment.variables import cell_variables, uv_variables
from kernels_bench_tools.run.process.run import Processes

RESOLUTION_SECONDS = 1800.0
"""How long uv may take; a torch for CUDA is gigabytes."""

SHARED_FOLDER = "environments"
"""Folder in a project's state with the scripts that stand for all cells of equal headers."""

PACKAGE_FOLDER = Path(__file__).parents[2]
"""This package, wherever it was loaded from."""


@dataclass(frozen=True)
class Prepared:
    """An environment that is ready, or why it is not."""

    python: str = ""
    reason: str = ""
    """Why there is none, in one line; empty if there is one."""
    seconds: float = 0.0
    script: str = ""
    """The script that it was made for; empty for one that nobody made."""
    packages: frozenset[str] = frozenset()
    """What was installed in it, by ``installed_packages``."""

    def is_intact(self) -> bool:
        """Return whether it holds what it was made with; a cell can install something for all that come after it."""
        return not self.script or installed_packages(self.python) == self.packages


class CellEnvironment(Protocol):
    """Where cells run."""

    name: str

    def identity(self) -> list[str]:
        """Return what of it changes results, for the cell cache; no path of this machine."""
        ...

    def script(self, cell: Cell) -> str:
        """Return the text of the script that is run."""
        ...

    def shared_script(self, code: str, script: Path, root: Path, state: Path) -> Path:
        """Return the script to prepare for a cell: that of all cells which ask for the same, or its own.

        Args:
            code: The text of the script that is run.
            script: Where it is.
            root: Folder of the project.
            state: Folder for what builds keep.
        """
        ...

    def prepare(self, script: Path, log: Path, processes: Processes) -> Prepared:
        """Make the environment of a script ready, with what that printed in ``log``."""
        ...

    def variables(self, home: Path) -> dict[str, str]:
        """Return the environment variables of a cell whose home is ``home``."""
        ...


class UvEnvironment:
    """An environment for each header, resolved by uv."""

    name = "uv"

    def __init__(self) -> None:
        # Not when it is needed: environments are made by several threads, and looking for uv is not safe there.
        self._uv = find_uv()

    def identity(self) -> list[str]:
        """Return the platform, and the python that uv was told to use."""
        return [self.name, platform.system(), platform.machine(), os.environ.get("UV_PYTHON", "")]

    def script(self, cell: Cell) -> str:
        """Return the cell's code with a header, which is what isolates it."""
        return with_header(cell.code, cell.deps)

    def shared_script(self, code: str, script: Path, root: Path, state: Path) -> Path:
        """Return a script that has the cell's header alone, or the cell's own if it may mean something else."""
        return shared_script(code, script, root, state / SHARED_FOLDER)

    def prepare(self, script: Path, log: Path, processes: Processes) -> Prepared:
        """Make uv build what the script's header asks for, and nothing else."""
        answer = log.with_suffix(".json")
        command = [self._uv, "sync", "--script", str(script), "--output-format", "json"]
        end = processes.run(
            command,
            folder=script.parent,
            variables=uv_variables(os.environ),
            stdout=answer,
            stderr=log,
            timeout=RESOLUTION_SECONDS,
        )
        text, said = answer.read_bytes(), log.read_text(encoding="utf-8", errors="replace")
        answer.unlink()
        if end.timed_out:
            reason = f"uv did not finish within {RESOLUTION_SECONDS:.0f} s"
            return Prepared(reason=reason, seconds=end.seconds)
        if end.code:
            return Prepared(reason=uv_reason(said, end.code), seconds=end.seconds)
        python = synced_python(text)
        return Prepared(
            python=python, seconds=end.seconds, script=str(script), packages=installed_packages(python)
        )

    def variables(self, home: Path) -> dict[str, str]:
        """Return the user's variables without those that reach into an isolated environment."""
        variables = cell_variables(uv_variables(os.environ), home)
        for name in ("PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX"):
            variables.pop(name, None)
        return variables


class CurrentEnvironment:
    """The interpreter that runs ``kbt``, with whatever is installed there."""

    name = "current"

    def identity(self) -> list[str]:
        """Return the platform, this python, and every distribution that it has."""
        return [self.name, platform.system(), platform.machine(), sys.version, *_distributions()]

    def script(self, cell: Cell) -> str:
        """Return the cell's code; its header says what it would like, not what it gets."""
        return cell.code

    def shared_script(self, code: str, script: Path, root: Path, state: Path) -> Path:  # noqa: ARG002
        """Return what stands for the interpreter, which is the same for all cells."""
        return Path(sys.executable)

    def prepare(self, script: Path, log: Path, processes: Processes) -> Prepared:  # noqa: ARG002
        """Note which interpreter it is."""
        version = platform.python_version()
        log.write_text(
            f"current environment: {platform.python_implementation()} {version}\n", encoding="utf-8"
        )
        return Prepared(python=sys.executable)

    def variables(self, home: Path) -> dict[str, str]:
        """Return the user's variables, with this package importable wherever it was loaded from."""
        variables = cell_variables(os.environ, home)
        paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
        variables["PYTHONPATH"] = os.pathsep.join([*paths, str(PACKAGE_FOLDER.parent)])
        return variables


def find_environment(name: str) -> CellEnvironment:
    """Return the environment called ``name``.

    Raises:
        ProjectError: There is none of this name, or uv is not installed.
    """
    kinds: dict[str, type[CellEnvironment]] = {"uv": UvEnvironment, "current": CurrentEnvironment}
    if name not in kinds:
        raise ProjectError(f"environment {name!r}", "there is no such environment", "uv or current")
    return kinds[name]()


def write_script(path: Path, text: str) -> None:
    """Write a cell's script, unless it is there already; git is told to leave the folder alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ignore_folder(path.parent.parent)
    data = text.encode()
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)


def ignore_folder(folder: Path) -> None:
    """Make ``folder``, and tell git to leave alone what is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / ".gitignore"
    if not marker.exists():
        marker.write_text("*\n", encoding="utf-8")


def _distributions() -> list[str]:
    """Return what is installed: the names of these folders hold name and version.

    This package is left out: of it, each cell's key has the content. Where a fresh interpreter looks counts,
    not this one's ``sys.path``: importing setuptools, for example, adds a folder of distributions to it.
    """
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *site.getsitepackages()]
    folders = {Path(path) for path in paths if path}
    found = {path.name for folder in folders for path in folder.glob("*.dist-info")}
    return sorted(name for name in found if not name.startswith(f"{PACKAGE_FOLDER.name}-"))
