"""The Python environments that cells run in: one made by uv for each header, or the current interpreter.

``uv sync --script`` makes the environment, and the cell is started by its python. ``uv run`` would do both, but mix
uv's output and time with the cell's, and a timeout would end uv instead of the cell.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import site
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import file_text, read_file, update_file, write_atomically
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.header import (
    OLD_PYTHON,
    OLDEST_PYTHON,
    PACKAGE,
    needs_old_python,
    path_sources,
    read_header,
    split_header,
    uv_settings,
    with_header,
)
from kernels_bench_tools.own_folders import clear_file, make_folder, remove_tree
from kernels_bench_tools.own_process import PACKAGE_FOLDER, PYTHON, module_variables
from kernels_bench_tools.run.environment.installed import Installed, find_packages, site_packages
from kernels_bench_tools.run.environment.variables import cache_folder, cell_variables, uv_variables
from kernels_bench_tools.run.logs import Logs
from kernels_bench_tools.run.process.run import Exit, Limits, Processes, Start, Stop
from kernels_bench_tools.text.words import plural

RESOLUTION_SECONDS = 1800.0
"""Time limit of uv; a torch for CUDA is gigabytes."""

_UNSOLVABLE = ("No solution found", "Failed to build")
"""uv's messages for what fails again. Others, such as a lost connection, may not."""

SHARED_FOLDER = "environments"
"""Folder in a project's state for the scripts of shared environments."""

_DOWNLOAD = re.compile(r"\s*Downloading (?P<package>\S+ \(.*\))")


@dataclass(frozen=True)
class Prepared:
    """An environment that is ready, or the reason why it is not."""

    python: str = ""
    reason: str = ""
    """Why it could not be made, in one line; empty if it could."""
    unsolvable: bool = False
    """Whether it would fail again: no versions fit the header, or a package cannot be built."""
    script: str = ""
    """The script that it was made for; empty for the current interpreter."""
    files: Installed | None = None
    """Its files, which no cell may change."""

    def change(self, ended: int | None = None, *, measures: bool) -> str:
        """Return the first of its files that has changed; empty if none has, or if that is not looked for.

        The current interpreter may have many packages, so it is looked at for a cell that ``measures`` only; ``ended`` as
        for :meth:`.Installed.change`.
        """
        return self.files.change(ended) if self.files and (self.script or measures) else ""


class UvEnvironment:
    """An environment for each header, made by uv."""

    name = "uv"

    def __init__(self) -> None:
        self._uv = find_uv()  # here, since it is not thread-safe
        self.on_download: Callable[[str], None] = lambda _: None
        """Called with name and size of each package of more than 1 MB when uv begins to download it."""

    def identity(self) -> list[str]:
        return [self.name, platform.system(), platform.machine(), os.environ.get("UV_PYTHON", "")]

    def script(self, cell: Cell) -> str:
        return with_header(cell.code, cell.deps)

    def shared_script(self, code: str, script: Path, state: Path) -> Path:
        """Return the script whose environment the cell uses whose ``script`` is ``code``.

        A shared one is written to the project's state unless it is up to date.
        """
        if (header := _portable(code, script.parent)) is None:
            return script
        folder = state / SHARED_FOLDER
        state.mkdir(parents=True, exist_ok=True)
        make_folder(folder, state)
        path = folder / f"{hashlib.sha256(header.encode()).hexdigest()[:32]}.py"
        update_file(path, header.encode())
        return path

    def prepare(self, script: Path, state: Path, log: Path, processes: Processes) -> Prepared:
        name = hashlib.sha256(os.fsencode(script)).hexdigest()[:32]
        manifest = state / SHARED_FOLDER / f"{name}.json"
        sources = _local_packages(script)
        known = Installed.restored(manifest, sources)
        wrong, package = known.change() if known else "", ""
        for _ in range(3):
            prepared = self._sync(script, log, processes)
            if prepared.reason:
                return prepared
            # A repository may contain any manifest: only what uv names is an environment.
            known = known if known and known.python == prepared.python else None
            if known and not wrong and not known.change():
                return replace(prepared, files=known)
            folder = Path(prepared.python).parents[1]
            if not (known and wrong):
                files = Installed(prepared.python, folder, sources, manifest)
                wrong, package = files.flaw()
                if not wrong:
                    return replace(prepared, files=files)
            known = None
            if (folder / "pyvenv.cfg").is_file():
                remove_tree(folder, folder.parent)
            # A cell that writes to a file of its environment changes uv's cache, which is linked and in use by `uv run kbt`.
            if package:
                self._run(["cache", "clean", "--force", package], script, log, processes)
        reason = f"its environment differs from what its packages installed: {wrong}. Run `uv cache clean`"
        return Prepared(reason=reason)

    def _sync(self, script: Path, log: Path, processes: Processes) -> Prepared:
        requires = _header(script).get("requires-python")
        if needs_old_python(requires):
            reason = f"requires-python is {requires}. {OLD_PYTHON}"
            write_atomically(log, f"{reason}\n".encode(), sync=False)
            return Prepared(reason=reason, unsolvable=True)
        # Else a .python-version beside the script, or above it, could name a program of the repository.
        python = os.environ.get("UV_PYTHON") or f">={'.'.join(map(str, OLDEST_PYTHON))},{requires or '>3'}"
        command = ["sync", "--script", str(script), "--python", python, "--output-format", "json"]
        end, output = self._run(command, script, log, processes)
        if end.stop is Stop.TIMEOUT:
            return Prepared(reason=f"uv timed out after {RESOLUTION_SECONDS:.0f} s")
        if end.code:
            errors = file_text(log)
            unsolvable = any(text in errors for text in _UNSOLVABLE) and "network" not in errors
            # Without the hints below it.
            text = errors.rpartition("error:")[2].split("\n\n")[0].replace("cause:", ":")
            reason = " ".join(text.split()).replace(" :", ":") or f"uv ended with exit code {end.code}"
            if f"{PACKAGE} was not found" in reason:
                reason += ". Name a path or git source for all cells: kbt upgrade --harness SOURCE"
            return Prepared(reason=reason, unsolvable=unsolvable)
        interpreter = json.loads(output)["sync"]["environment"]["python"]
        if tuple(map(int, interpreter["version"].split(".")[:2])) < OLDEST_PYTHON:
            reason = f"UV_PYTHON is Python {interpreter['version']}. {OLD_PYTHON}"
            return Prepared(reason=reason, unsolvable=True)
        return Prepared(python=interpreter["path"], script=str(script))

    def _run(self, command: list[str], script: Path, log: Path, processes: Processes) -> tuple[Exit, bytes]:
        """Run uv for ``script``; return how it ended and what it printed. Errors are written to ``log``."""

        def look(line: str) -> None:
            if download := _DOWNLOAD.fullmatch(line):
                self.on_download(download["package"])

        logs = Logs(log, on_line=look)
        start = Start(
            command=[self._uv, *command],
            # Not the repository, where uv finds a .venv and settings; as deep, for relative paths of a header.
            folder=cache_folder("uv", *["below"] * len(script.parents)),
            variables=uv_variables(os.environ),
        )
        end = processes.run(start, Limits(RESOLUTION_SECONDS), logs)
        return end, logs.texts[0]

    def variables(self, home: Path) -> dict[str, str]:
        variables = cell_variables(uv_variables(os.environ), home)
        # Many images set the last one; each process would compile torch's modules again.
        for name in ("PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "PYTHONDONTWRITEBYTECODE"):
            variables.pop(name, None)
        return variables


_TORCH = re.compile(r"\s*torch\s*([<=>!~;\[]|$)")


def torch_notice(cells: Iterable[Cell], state: Path, environ: Mapping[str, str]) -> str:
    """Return what is downloaded with torch for cells that run on a CPU.

    Empty if no cell installs it, an environment of this project has it, or a build for CPUs may have been chosen.
    """
    count, variables = sum(map(_installs_torch, cells)), uv_variables(environ)
    chosen = "UV_FIND_LINKS" in variables or any("cpu" in variables.get(name, "") for name in _INDEXES)
    if not count or chosen or sys.platform != "linux":
        return ""
    made = (Installed.restored(manifest, []) for manifest in (state / SHARED_FOLDER).glob("*.json"))
    if any(find_packages(environment.python) for environment in made if environment):
        return ""
    return (
        f"{plural(count, 'cell')} will install torch: most indexes have only its CUDA build for Linux, a download of about "
        "3 GB unless uv has it cached. UV_FIND_LINKS=FOLDER takes a CPU build from a folder; `kbt build --no-measure` needs none"
    )


_INDEXES = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_TORCH_BACKEND")


def _installs_torch(cell: Cell) -> bool:
    """Return whether a cell's header names torch, without a source of its own."""
    header = read_header(cell.code)
    written = (header or {}).get("dependencies", cell.deps)
    texts = [text for text in written if isinstance(text, str)] if isinstance(written, list) else []
    return any(map(_TORCH.match, texts)) and "torch" not in (uv_settings(header).get("sources") or {})


class CurrentEnvironment:
    """The interpreter that runs ``kbt``, with its packages."""

    name = "current"
    on_download: Callable[[str], None]

    def identity(self) -> list[str]:
        return [self.name, platform.system(), platform.machine(), sys.version, *_distributions()]

    def script(self, cell: Cell) -> str:
        return cell.code

    def shared_script(self, code: str, script: Path, state: Path) -> Path:  # noqa: ARG002
        return Path(PYTHON)

    def prepare(self, script: Path, state: Path, log: Path, processes: Processes) -> Prepared:  # noqa: ARG002
        version = f"{platform.python_implementation()} {platform.python_version()}"
        write_atomically(log, f"current environment: {version}\n".encode(), sync=False)
        files = Installed(PYTHON, packages_folder(), [PACKAGE_FOLDER])
        files.accept()
        return Prepared(python=PYTHON, files=files)

    def variables(self, home: Path) -> dict[str, str]:
        return module_variables(cell_variables(os.environ, home))


CellEnvironment = UvEnvironment | CurrentEnvironment
"""Where cells run."""


def find_environment(name: str) -> CellEnvironment:
    """Return the environment called ``"uv"`` or ``"current"``; that uv is not installed is a ``ProjectError``."""
    return UvEnvironment() if name == UvEnvironment.name else CurrentEnvironment()


def find_uv() -> str:
    """Return the path of uv: that of its package, else the one on ``PATH``."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        uv = shutil.which("uv")
    if uv is None:
        raise ProjectError("uv", "is not installed", "", "`pip install uv`, or build with `--env current`")
    return uv


def _local_packages(script: Path) -> list[Path]:
    """Return the folders that a script's header takes from the local disk; of this package, what it imports."""
    folders = []
    for source in local_sources(_header(script), script).values():
        package = source / PACKAGE_FOLDER.name
        folders.append(package if package.is_dir() else source)
    return [folder for folder in folders if folder.is_dir()]


def local_sources(header: dict[str, Any] | None, script: Path) -> dict[str, Path]:
    """Return the paths of the packages that a script's header takes from the local disk, by name."""
    written = path_sources(header).items()
    return {name: Path(os.path.normpath(script.parent / path)) for name, path in written}


def _header(script: Path) -> dict[str, Any]:
    with suppress(ValueError):
        return read_header(read_file(script).decode()) or {}
    return {}


def write_script(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a cell's script unless it is up to date, and make git ignore its folder; for ``replace`` see :func:`make_folder`."""
    state = path.parent.parent
    state.parent.mkdir(parents=True, exist_ok=True)
    make_folder(path.parent, state.parent, replace=replace)
    ignore_folder(state)
    update_file(path, text.encode())


def write_process_script(folder: Path, name: str, text: str, cell: Cell, python: str) -> Path:
    """Write a cell's script, and the cells that it imports, into a folder of this process alone; return its path.

    Python looks for modules there first. One that its environment has is not replaced.
    """
    folder.mkdir()
    installed = site_packages(python) or folder
    for module, code in cell.imported.items():
        if not (installed / module).exists() and not (installed / f"{module}.py").exists():
            (folder / f"{module}.py").write_text(code + "\n", encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def ignore_folder(folder: Path) -> None:
    """Make ``folder``, which must not be a link, with a ``.gitignore`` that ignores all of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_folder(folder, folder.parent)
    marker = folder / ".gitignore"
    clear_file(marker)
    if not marker.exists() or not read_file(marker).strip(b"\0"):  # it may have been cut by a power failure
        update_file(marker, b"*\n", sync=True)


def packages_folder() -> Path:
    return Path(site.getsitepackages()[0])


def _distributions() -> list[str]:
    """Return name and version of all installed distributions, and the names of modules and packages in ``PYTHONPATH``.

    Without this package, whose content is in cells' keys. The folders are those of a fresh interpreter: imports such as that
    of setuptools change this one's ``sys.path``.
    """
    added = {Path(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    folders = added | {Path(path) for path in site.getsitepackages()}
    names = {path.name for folder in folders for path in folder.glob("*.dist-info")}
    distributions = sorted(name for name in names if not name.startswith(f"{PACKAGE_FOLDER.name}-"))
    modules = {path.name for folder in added for path in folder.glob("*.py")}
    packages = {path.parent.name for folder in added for path in folder.glob("*/__init__.py")}
    return distributions + sorted((modules | packages) - {PACKAGE_FOLDER.name})


_UNDERSTOOD = {"dependencies", "requires-python", "tool"}
# Settings of uv that never contain a path. A header with others is not shared.
_WITHOUT_PATHS = {"exclude-newer", "exclude-newer-package", "index-strategy", "prerelease", "resolution"}
_SOURCE_KEYS = {"branch", "editable", "git", "marker", "package", "path", "rev", "subdirectory", "tag", "url"}
_PATH = re.compile(r"""(\bpath\s*=\s*)("[^"\\\n]*"|'[^'\n]*')""")


def _portable(code: str, folder: Path) -> str | None:
    """Return the header of ``code`` so that it is valid in any folder, as a script; None if that is not possible."""
    try:
        header = read_header(code) or {}
    except ValueError:
        return None
    settings, dependencies = uv_settings(header), header.get("dependencies", [])
    if header.keys() - _UNDERSTOOD or settings.keys() - _WITHOUT_PATHS - {"sources"}:
        return None
    # A path, or a variable, in a requirement
    for dependency in map(str, dependencies):
        if "$" in dependency or ("@" in dependency and "://" not in dependency):
            return None
    sources = settings.get("sources", {})
    if not isinstance(sources, dict):
        return None
    tables = [
        table for source in sources.values() for table in (source if isinstance(source, list) else [source])
    ]
    for table in tables:
        if (
            not isinstance(table, dict)
            or table.keys() - _SOURCE_KEYS
            or "://" not in str(table.get("git", "://"))
        ):
            return None

    def absolute(path: re.Match[str]) -> str:
        return path[1] + json.dumps(os.path.normpath(folder / path[2][1:-1]))

    content, count = _PATH.subn(absolute, split_header(code)[1])
    return f"# /// script\n{content}# ///\n" if count == sum("path" in table for table in tables) else None
