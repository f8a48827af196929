"""The process that judges cells: started once for each torch, told whose turn it is, and ended with the build."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import file_text, open_regular, read_file
from kernels_bench_tools.measure.judge.messages import Ended, Job, Written
from kernels_bench_tools.own_process import PACKAGE_FOLDER, PYTHON, import_paths, isolated_command
from kernels_bench_tools.run.environment.base import CellEnvironment, write_script
from kernels_bench_tools.run.environment.installed import find_packages
from kernels_bench_tools.run.environment.variables import cache_folder, compiler_caches, only_gpu
from kernels_bench_tools.run.process.reaper import OWNER_VARIABLE, conditions, reaper, start_session
from kernels_bench_tools.run.process.run import Processes

STARTER = ("-m", "kernels_bench_tools.measure.judge.start")
"""Arguments of Python before the script of a cell that is judged."""
START_SECONDS, ANSWER_SECONDS = 120.0, 120.0
"""It imports torch, and may be comparing a large output when the cell ends."""

_CODE = """
import gc, sys
gc.disable()  # importing torch makes a million objects and little garbage
sys.path += {paths!r}
from kernels_bench_tools.measure.judge.process import main
gc.enable()
main({socket!r}, {device!r})
"""


def judge_script(site: Path) -> str:
    """Return a script with what the judge imports: the torch of an environment, from the user's index, and no other of its packages.

    They are copies, as a cell that writes to a file of its own environment also changes uv's cache, and each link changes the
    time of its file.
    """
    torch = next(site.glob("torch-*.dist-info")).name.removeprefix("torch-").removesuffix(".dist-info")
    packages = [
        f"torch=={torch.partition('+')[0]}",
        *(f"{name}=={version(name)}" for name in ("msgspec", "numpy")),
    ]
    lines = (
        f"requires-python = '=={site.parent.name.removeprefix('python')}.*'",
        f"dependencies = {packages}",
        "[tool.uv]",
        "link-mode = 'copy'",
    )
    return "# /// script\n" + "".join(f"# {line}\n" for line in lines) + "# ///\n"


def other_package(site: Path) -> bool:
    """Return whether an environment has another version of this package than the one that runs, or none."""
    lines = [line for file in sorted(site.glob("*.pth")) for line in file_text(file).splitlines()]
    for folder in (site, *(Path(line) for line in lines if line and not line.startswith(("#", "import")))):
        package = folder / PACKAGE_FOLDER.name
        if (package / "__init__.py").is_file():
            same_place = package.resolve() == PACKAGE_FOLDER.resolve()
            return not same_place and _sources(package) != _sources(PACKAGE_FOLDER)
    return True


def _sources(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): read_file(path) for path in folder.rglob("*.py")}


Turn = Future[None]
"""Done when a process that has started may measure; cancelled if it is to end without having measured."""


class Judge:
    """One judging process; started again for the next cell if it has failed."""

    def __init__(
        self, python: str, paths: list[str], variables: Mapping[str, str], folder: Path, device: str
    ) -> None:
        self.socket = str(folder / "socket")
        self._log = folder / "log"
        self._command = isolated_command(_CODE.format(paths=paths, socket=self.socket, device=device), python)
        # Threads that wait for each other would keep the cores busy on which cells are measured.
        self._variables = {"OMP_WAIT_POLICY": "passive", **variables, OWNER_VARIABLE: reaper().owner}
        self._start()

    def _start(self) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)  # a cell may have removed it
        Path(self.socket).unlink(missing_ok=True)
        with open_regular(self._log, "ab") as log:
            self._process = start_session(
                self._command,
                cwd=self._log.parent,
                env=self._variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._state: tuple[int, int] | None = None  # until it has answered

    def begin(self, job: Job) -> None:
        """Say that a cell is about to start, and wait until its operator is loaded; ``OSError`` if that failed."""
        if self._process.poll() is not None or (self._state and self._socket_state() != self._state):
            self.close()
            self._start()
        if not self._state:
            self._exchange(None, START_SECONDS)
            self._state = self._socket_state()
        open_regular(self._log, "wb").close()  # what it said of other cells is not why it fails now
        self._exchange(job, START_SECONDS)
        self._conditions = conditions(self._process.pid)  # now that it has used the device

    def end(self, ended: Ended) -> Written:
        """Say that the cell's process has ended; return what was written, ``OSError`` if the process has failed."""
        written = self._exchange(ended, ANSWER_SECONDS)
        if conditions(self._process.pid) != self._conditions:
            self.close()
            raise OSError("cores, priority or limits of the process that judges cells were changed")
        return written

    def _socket_state(self) -> tuple[int, int]:
        """Return inode and age of the socket, which a cell could remove or replace; zeros if there is none."""
        try:
            about = Path(self.socket).stat()
        except OSError:
            return 0, 0
        return about.st_ino, about.st_ctime_ns

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _exchange(self, message: Job | Ended | None, seconds: float) -> Written:
        """Send a message, if there is one; return the answer, ``OSError`` if the process has failed or is too late."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late, line = threading.Timer(seconds, self._process.kill), b""
        late.start()
        with suppress(OSError):  # it has ended
            if message is not None:
                self._process.stdin.write(msgspec.json.encode(message) + b"\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        late.cancel()
        if line:
            return msgspec.json.decode(line, type=Written)
        self._process.kill()
        self._process.wait()
        lines = file_text(self._log).strip().splitlines() or ["it was ended"]
        raise OSError(f"the process that judges cells failed: {lines[-1]}. Run this cell again")


class Judges:
    """The processes that judge the cells of a build on a torch device: one for each torch and GPU."""

    def __init__(self, environment: CellEnvironment, processes: Processes, device: str) -> None:
        self._environment, self._processes, self._device = environment, processes, device
        self._judges: dict[tuple[str, str], Judge] = {}
        self._lock = threading.Lock()

    def find(self, python: str, gpu: str = "") -> Judge | None:
        """Return the process that judges cells of an environment on a GPU, ready for them; ``OSError`` if that is not possible.

        None if it has no torch, or another version of this package. The process has an environment of its own, with no
        package that a header names.
        """
        if python == PYTHON:
            script, paths = "", import_paths() if find_spec("torch") else []
        else:
            site = find_packages(python)
            script = judge_script(site) if site and not other_package(site) else ""
            paths = [str(PACKAGE_FOLDER.parent)] if script else []
        if not paths:
            return None
        with self._lock:
            if (script, gpu) not in self._judges:
                folder = Path(tempfile.mkdtemp(prefix="judge-", dir=reaper().folder))
                if script:
                    python, site = self._prepared(script, folder / "environment")
                    paths.insert(0, str(site))
                variables = self._environment.variables(folder) | compiler_caches({}, folder) | only_gpu(gpu)
                self._judges[script, gpu] = Judge(python, paths, variables, folder, self._device)
            return self._judges[script, gpu]

    def _prepared(self, script: str, log: Path) -> tuple[str, Path]:
        """Make the environment of a script; return its Python and the folder of its packages."""
        state = cache_folder("judge")
        path = state / "scripts" / f"{sha256(script.encode()).hexdigest()[:32]}.py"
        write_script(path, script, replace=True)
        made = self._environment.prepare(path, state, log, self._processes)
        if made.reason or not (site := find_packages(made.python)):
            raise OSError(
                f"the environment of the process that judges cells cannot be created: {made.reason}"
            )
        return made.python, site

    def close(self) -> None:
        with self._lock:
            for judge in self._judges.values():
                judge.close()


def leave_a_core(variables: dict[str, str]) -> None:
    """Let a process that is judged on a CPU have as many threads as cores are left to it."""
    if hasattr(os, "sched_getaffinity"):
        variables.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))


class JudgedProcess:
    """A process of a cell that has imported when it is its turn, begins then, and is judged if there is a ``judge``."""

    def __init__(self, turn: Turn | None, judge: Judge | None, job: Job, *, on_cpu: bool) -> None:
        self._line = f"{job.token}{' beside' if on_cpu else ''}\n".encode()
        self._turn, self._judge, self._job = turn, judge, job
        self._began = False
        self._judging = False
        self._write = -1

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yield standard input of the process; the line that starts it is written by :meth:`look`.

        Without a judge nothing is to be imported before its turn, so this waits for it.
        """
        if self._judge is None:
            if self._turn is not None:
                self._turn.result()
            yield subprocess.DEVNULL
            return
        read, self._write = os.pipe()
        if self._began:  # again, after a crash
            os.write(self._write, self._line)
        try:
            yield read
        finally:
            os.close(read)
            self._close()

    def look(self) -> bool:
        """Start the process if it is its turn; end it if it is to have none. Return whether it still waits for it."""
        if self._began or self._judge is None:
            return False
        if self._turn and not self._turn.done():
            return True
        self._began = True
        if self._turn and self._turn.cancelled():
            self._close()
            return False
        self._judge.begin(self._job)
        self._judging = True
        os.write(self._write, self._line)
        return False

    def end(self, ended: Ended) -> Written:
        """Tell the judge that the process has ended; return what was written, which is nothing if nothing was judged."""
        return self._judge.end(ended) if self._judge and self._judging else Written()

    def _close(self) -> None:
        if self._write >= 0:
            os.close(self._write)
        self._write = -1
