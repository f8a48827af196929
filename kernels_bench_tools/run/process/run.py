"""Processes that can be ended whole: with everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kernels_bench_tools.run.process.linux import Sleep, has_ended, restrain
from kernels_bench_tools.run.process.logs import cut_log
from kernels_bench_tools.run.process.memory import MemoryWatch
from kernels_bench_tools.run.process.orphans import OWNER_VARIABLE, kill_processes, kill_session
from kernels_bench_tools.run.process.reaper import guardian

LOG_LIMIT = 2**30
"""Bytes that a process may print on either stream; one that loops would fill the disk."""

_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.05


class InterruptedBuildError(Exception):
    """The build is being interrupted: nothing may be started any more."""


class CancelledCellError(Exception):
    """What the cell would have left is outdated already, so it was ended."""


def never() -> bool:
    """Return False: nobody cancels."""
    return False


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    code: int
    """As ``subprocess`` has it: negative for a signal."""
    seconds: float
    timed_out: bool = False
    flooded: bool = False
    """Whether it was ended for printing more than ``LOG_LIMIT``."""
    memory: int = 0
    """Bytes that it held when it was ended for holding too many, else 0."""


class _Stop(Enum):
    """Why a process is ended before it ends itself."""

    TIMEOUT = "timeout"
    FLOOD = "flood"
    MEMORY = "memory"
    CANCELLED = "cancelled"


@dataclass
class _Watch:
    """What is looked at while a process runs."""

    deadline: float
    logs: tuple[Path, Path]
    memory: MemoryWatch | None
    tell: Callable[[], None]
    cancelled: Callable[[], bool]
    held: int = field(default=0, init=False)

    def look(self) -> _Stop | None:
        """Return why the process is to be ended, or None if it may go on."""
        if self.cancelled():
            return _Stop.CANCELLED
        if time.monotonic() >= self.deadline:
            return _Stop.TIMEOUT
        if any(log.stat().st_size > LOG_LIMIT for log in self.logs):
            return _Stop.FLOOD
        self.held = self.memory.excess() if self.memory else 0
        if self.held:
            return _Stop.MEMORY
        self.tell()
        return None


class Processes:
    """The processes of one build, each in a session of its own; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._interrupted = False

    def run(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        variables: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        timeout: float,
        marker: tuple[str, str] | None = None,
        watch: Callable[[], None] = lambda: None,
        cancelled: Callable[[], bool] = never,
        memory_limit: int = 0,
    ) -> Exit:
        """Run a command to its end, and see to it that nothing of it is left then.

        Args:
            command: Program and arguments.
            folder: Its current folder.
            variables: Its whole environment, but for the variable that says whose it is.
            stdout: File for its standard output, as bytes; the middle of a long one is replaced by a line.
            stderr: File for its standard error, likewise.
            timeout: Seconds after which it is ended.
            marker: A variable and its value by which processes that left the session are found.
            watch: Called now and then while it runs, and once after.
            cancelled: Asked now and then while it runs; once it says yes, the process is ended.
            memory_limit: Bytes that it may hold together with what it starts; 0 for any number.

        Raises:
            CancelledCellError: It was cancelled.
            InterruptedBuildError: :meth:`interrupt` was called.
            OSError: It cannot be started.
        """
        started = time.monotonic()
        owned = {**variables, OWNER_VARIABLE: guardian().owner}
        for log in (stdout, stderr):
            log.write_bytes(b"")
        # Each write goes to the end, also those of programs that open the stream by its name.
        with stdout.open("ab") as out, stderr.open("ab") as err:
            process = self._start(command, folder, owned, (out.fileno(), err.fileno()))
            memory = MemoryWatch(process.pid, memory_limit) if memory_limit else None
            observed = _Watch(started + timeout, (stdout, stderr), memory, watch, cancelled)
            try:
                stop = _wait(process, observed)
                if stop is not None:
                    _end(process, gently=stop is _Stop.TIMEOUT or stop is _Stop.FLOOD)
                seconds = time.monotonic() - started
            finally:
                self._clear_away(process, marker)
        watch()
        if self._interrupted:
            raise InterruptedBuildError
        if stop is _Stop.CANCELLED:
            raise CancelledCellError
        for log in (stdout, stderr):
            cut_log(log)
        return Exit(process.returncode, seconds, stop is _Stop.TIMEOUT, stop is _Stop.FLOOD, observed.held)

    def interrupt(self) -> None:
        """End everything that runs, and let nothing start any more."""
        with self._lock:
            self._interrupted = True
            for process in self._running:
                _signal_group(process, signal.SIGKILL)

    def _start(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str], outputs: tuple[int, int]
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._interrupted:
                raise InterruptedBuildError
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                start_new_session=True,
            )
            self._running.add(process)
        restrain(process.pid)
        return process

    def _clear_away(self, process: subprocess.Popen[bytes], marker: tuple[str, str] | None) -> None:
        """Kill whatever the process left behind, as it would disturb every measurement after it."""
        _signal_group(process, signal.SIGKILL)
        kill_session(process.pid)
        if marker is not None:
            kill_processes(marker[0], marker[1].__eq__)
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            # Until it is waited for, no other process can have its number, and be killed in its place.
            self._running.discard(process)
            process.wait()


def _wait(process: subprocess.Popen[bytes], observed: _Watch) -> _Stop | None:
    """Wait for the end; return why it has to be brought about, or None if it came."""
    with Sleep(process.pid) as sleep:
        while not has_ended(process):
            stop = observed.look()
            if stop is not None:
                return stop
            sleep(min(_LOOK_SECONDS, max(0.0, observed.deadline - time.monotonic())))
    return None


def _end(process: subprocess.Popen[bytes], *, gently: bool) -> None:
    """Make the process end; gently, it is asked to first."""
    _signal_group(process, signal.SIGTERM if gently else signal.SIGKILL)
    deadline = time.monotonic() + _GRACE_SECONDS
    with Sleep(process.pid) as sleep:
        while gently and not has_ended(process) and time.monotonic() < deadline:
            sleep(_LOOK_SECONDS)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
