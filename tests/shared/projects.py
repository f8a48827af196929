"""Copies of this project, the command run in them, and folders that the workers of a test run share."""

import os
import shutil
import site
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from fork_server import ForkServer

ROOT = Path(__file__).parents[2]
COPIED = ("index.md", "layer_norm", "pyproject.toml", "README.md", "LICENSE", "templates")
NO_COPY = shutil.ignore_patterns("__pycache__", ".kbt", ".uvnote")

WITHOUT_RIGHTS = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
"""Makes root subject to the modes of files, and keeps it from what other processes hide."""

Kbt = Callable[..., subprocess.CompletedProcess[str]]


ENVIRONMENT = tempfile.TemporaryDirectory(prefix="kbt-python-")
"""Where ``PYTHON`` is; removed when the tests have ended."""


def _make_python() -> str:
    """Make an environment with a file that names the folder of this one's packages; return its interpreter.

    It lists the same packages, which are part of the keys of results.
    """
    venv.create(ENVIRONMENT.name, symlinks=True)
    (packages,) = Path(ENVIRONMENT.name).glob("lib/python*/site-packages")
    own = Path(site.getsitepackages()[0])
    (packages / "packages.pth").write_text(f"{own}\n{ROOT}\n")
    for listed in own.glob("*.dist-info"):
        (packages / listed.name).symlink_to(listed)
    return f"{ENVIRONMENT.name}/bin/python"


PYTHON = _make_python()
"""Interpreter for ``--env current``, with this one's packages. Around each cell a build looks at each file of the
environment, and looking at tens of thousands takes longer than most cells of tests."""


COMMAND = "from kernels_bench_tools.cli import app, main\n"
PREPARED = f"""{COMMAND}
from kernels_bench_tools.report import markup, prose, site
from kernels_bench_tools.report.templates import environment
from kernels_bench_tools.run.process import memory

app.find_app([])
for name in environment().list_templates("j2"):
    environment().get_template(name)  # compiling them takes as long as the rest of a small build
markup.highlighted("1")
markup.highlight_styles()
"""


@cache
def command_server(path: str) -> ForkServer:
    """Return the process that has imported all that commands use, where Python looks into these folders."""
    return ForkServer(PREPARED, PYTHON, PYTHONPATH=path)


def run_kbt(
    folder: Path, *arguments: str, timeout: int = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder`` as a user would, with the packages of this interpreter's environment."""
    environment = os.environ | {"USE_HUB_KERNELS": "0"} | variables
    own = folder / "kernels_bench_tools"
    path = variables.get("PYTHONPATH") or str(own.resolve().parent if own.exists() else ROOT)
    return command_server(path).run(
        folder, f"{COMMAND}main()", *arguments, variables=environment, seconds=timeout
    )


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Assert that a mistake is exit code 2, one line on stderr that names the parts, and nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0]


def wait_until(condition: Callable[[], object], seconds: float = 20.0, interval: float = 0.05) -> bool:
    """Return whether a condition is met within this time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(interval)
    return bool(condition())


def survivors(word: str) -> list[psutil.Process]:
    """Return the processes with this word in their command line."""
    found = [one for one in psutil.process_iter(["cmdline", "status"]) if word in (one.info["cmdline"] or [])]
    return [one for one in found if one.info["status"] != psutil.STATUS_ZOMBIE]


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder as some user; return what it prints."""
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(folder: Path) -> None:
    """Commit all that is in a folder, which becomes a repository if it is none."""
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        git(folder, *command)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder by their paths in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


Change = tuple[str, str, str]
"""A file of ``measure/``, text that it has, and what replaces it."""
UNDISTURBED: tuple[Change, ...] = (
    ("timing/cpu.py", "\nMIN_WAITING_SECONDS = 0.01\n", "\nMIN_WAITING_SECONDS = float('inf')\n"),
    ("timing/measure.py", "CPU_PAUSE_SECONDS = 3, 0.5\n", "CPU_PAUSE_SECONDS = 3, 0.0\n"),
)
"""Accepts results that were measured while other tests kept the cores busy."""


def copy_project(destination: Path, *changes: Change) -> Path:
    """Copy what a clone of this project holds that a build reads."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, destination / name, ignore=NO_COPY)
        else:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination / name)
    copy_package(destination, *changes)
    return destination


def copy_package(destination: Path, *changes: Change) -> None:
    """Copy the package, with what ``UNDISTURBED`` and ``changes`` replace in it."""
    package = destination / "kernels_bench_tools"
    shutil.copytree(ROOT / package.name, package, ignore=NO_COPY)
    for file, given, changed in (*UNDISTURBED, *changes):
        path = package / "measure" / file
        text = path.read_text()
        assert given in text
        path.write_text(text.replace(given, changed))


def copy_built(built: Path, destination: Path) -> Path:
    """Copy a project that was built, with a link to its package, so that its commands share a process."""
    package = "kernels_bench_tools"
    shutil.copytree(built, destination, symlinks=True, ignore=shutil.ignore_patterns(package))
    (destination / package).symlink_to(built / package)
    return destination


def once_per_run(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make`` fills once per test run: the other workers wait for it and use the same one."""
    base = factory.getbasetemp()
    # The workers of a run have folders side by side; without workers, those next to it are of other runs.
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / name
    with FileLock(base / f"{name}.lock"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
    return folder
