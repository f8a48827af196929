"""Time and peak memory of commands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Cost:
    """Time and memory of one run of a command."""

    seconds: float
    cpu_seconds: float
    """Processor time of it and of the processes that it waited for; comparable on a busy machine, too."""
    peak_mib: float
    """Largest resident memory of it or of a process that it waited for."""


@dataclass(frozen=True)
class Costs:
    """Several runs of the same command."""

    runs: tuple[Cost, ...]

    @property
    def seconds(self) -> float:
        """Median time."""
        return median(run.seconds for run in self.runs)

    @property
    def cpu_seconds(self) -> float:
        """Median processor time."""
        return median(run.cpu_seconds for run in self.runs)

    @property
    def peak_mib(self) -> float:
        """Maximum memory over the runs."""
        return max(run.peak_mib for run in self.runs)

    def __str__(self) -> str:
        """Return the median with minimum and maximum, such as ``0.31 s (0.30-0.33)``."""
        times = sorted(run.seconds for run in self.runs)
        return f"{self.seconds:.2f} s ({times[0]:.2f}-{times[-1]:.2f})"


def variables(scratch: Path) -> dict[str, str]:
    """Return the environment of every command that is timed.

    Modules are read from bytecode, as those of an installed package are, and uv uses pip's wheel folder.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(scratch / "bytecode")
    # uv and uvnote are installed next to the interpreter.
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    if links := environ.get("PIP_FIND_LINKS"):
        environ.setdefault("UV_FIND_LINKS", links.replace(" ", ","))
    return environ


def timed(command: Sequence[str], folder: Path, environ: dict[str, str]) -> Cost:
    """Run a command and return its time and memory.

    Raises:
        SystemExit: It failed; the message has the end of its output.
    """
    log = folder / ".output"
    os.sync()  # so that data written by an earlier command is not counted
    with log.open("wb") as file:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    log.unlink()
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
