"""Runs commands, and says how long each took and how much memory it held."""

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
    """What one command took."""

    seconds: float
    cpu_seconds: float
    """Processor time of it and of all that it waited for: what is left of a figure on a busy machine."""
    peak_mib: float
    """The most that it, or one of the processes that it waited for, held in memory."""


@dataclass(frozen=True)
class Costs:
    """The same command several times."""

    runs: tuple[Cost, ...]

    @property
    def seconds(self) -> float:
        """The median time."""
        return median(run.seconds for run in self.runs)

    @property
    def cpu_seconds(self) -> float:
        """The median processor time."""
        return median(run.cpu_seconds for run in self.runs)

    @property
    def peak_mib(self) -> float:
        """The most memory that any of the runs held."""
        return max(run.peak_mib for run in self.runs)

    def __str__(self) -> str:
        """Return the median with the extremes, such as ``0.31 s (0.30-0.33)``."""
        times = sorted(run.seconds for run in self.runs)
        return f"{self.seconds:.2f} s ({times[0]:.2f}-{times[-1]:.2f})"


def variables(scratch: Path) -> dict[str, str]:
    """Return the environment of every command that is timed.

    Python reads modules from bytecode, as it does for an installed package, and pip's wheel folder serves uv.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(scratch / "bytecode")
    # uv and uvnote lie beside the interpreter.
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    if links := environ.get("PIP_FIND_LINKS"):
        environ.setdefault("UV_FIND_LINKS", links.replace(" ", ","))
    return environ


def timed(command: Sequence[str], folder: Path, environ: dict[str, str]) -> Cost:
    """Run a command to its end and return what it took.

    Raises:
        SystemExit: It failed; what it said is the message.
    """
    log = folder / ".output"
    os.sync()  # what an earlier command left unwritten is not this one's
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
