"""Processes that are ended together with everything that they started."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from kernels_bench_tools.file_io import read_file, write_atomically
from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.run.logs import Tail, printed
from kernels_bench_tools.run.process.reaper import (
    OWNER_VARIABLE,
    kill_orphans,
    reap_orphans,
    reaper,
    start_session,
)

LOG_LIMIT = 2**30
"""Maximum number of bytes that a process may print to either stream."""

_GRACE_SECONDS = 2.0
_CHECK_SECONDS = 0.05
_WAIT_SECONDS = 0.25
_OOM_SCORE = b"500"
"""If memory runs out, the kernel kills a cell before ``kbt``."""


class InterruptedBuildError(Exception):
    """The build is being interrupted: nothing may be started any more."""


class Stop(Enum):
    TIMEOUT = "timeout"
    OUTPUT = "output"
    """It printed more than ``LOG_LIMIT``."""
    MEMORY = "memory"


@dataclass(frozen=True)
class Exit:
    code: int
    """As in ``subprocess``: negative for a signal."""
    seconds: float
    stop: Stop | None = None
    """Why it was ended; None if it ended by itself."""
    memory: int = 0
    """Bytes that it used, if that was too much."""


class Processes:
    """The processes of one build, each in a session of its own; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._interrupted = False
        self._scheduling, self._slowed = scheduling(os.getpid()), 0

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
        on_line: Callable[[str], None] = lambda _: None,
        memory_limit: int | None = None,
        append: bool = False,
        stdin: int = subprocess.DEVNULL,
        waiting: Callable[[], bool] = lambda: False,
        make_folder: Callable[[], object] = lambda: None,
    ) -> Exit:
        """Run a command to its end, then kill every process that it has left.

        What it prints is in files without a name, which no process can replace, and is written to the logs at the end without
        the middle of a long text; each line is passed to ``on_line``. ``marker`` is a variable and its value that identify processes which
        left the session. ``watch`` is called repeatedly while the command runs, and once after. ``memory_limit`` is
        that of :class:`MemoryWatch`. With ``append``, the logs are continued. While ``waiting`` returns true, the time
        does not count. ``make_folder`` makes the logs' folder again if a cell has removed it. After :meth:`interrupt`, an ``InterruptedBuildError`` is raised.
        """
        from kernels_bench_tools.run.process.memory import MemoryWatch

        started = time.monotonic()
        owned = {**variables, OWNER_VARIABLE: reaper().owner}
        earlier = [read_file(log) if append else b"" for log in (stdout, stderr)]
        with TemporaryFile(dir=stdout.parent) as out, TemporaryFile(dir=stdout.parent) as err:
            files = out.fileno(), err.fileno()
            for file in files:  # since programs may open the streams again by name
                fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
            tail = Tail(files, on_line)
            process = self._start(command, folder, owned, (stdin, *files))
            carried = os.fsencode("=".join(marker or (OWNER_VARIABLE, "none")))
            memory = MemoryWatch(process.pid, carried, memory_limit)

            def check() -> Stop | None:
                nonlocal started
                watch()
                tail.look()
                reap_orphans()
                if waiting():
                    started = time.monotonic()
                if time.monotonic() >= started + timeout:
                    return Stop.TIMEOUT
                if any(os.fstat(file).st_size > LOG_LIMIT for file in files):
                    return Stop.OUTPUT
                if memory.excess():
                    return Stop.MEMORY
                return None

            try:
                stop = _wait(process, check)
                if stop is not None:
                    _end(process, gently=stop is not Stop.MEMORY)
                seconds = time.monotonic() - started
            finally:
                self._kill_rest(process, carried)
                memory.remove_files()
                tail.look()
                make_folder()
                for file, log, before in zip(files, (stdout, stderr), earlier, strict=True):
                    remove_tree(log, log.parent)  # a cell may have put a folder or FIFO there
                    write_atomically(log, before + printed(file), sync=False)
        watch()
        if self._interrupted:
            raise InterruptedBuildError
        return Exit(process.returncode, seconds, stop, memory.used)

    def slowed(self) -> int:
        """Return how often cores or priority of this process were found to be changed, and undo it if that is allowed.

        A process can do that to others of its user. All that they start then inherits it.
        """
        now = scheduling(os.getpid())
        if set(now.values()) <= set(self._scheduling.values()):
            return self._slowed
        self._slowed += 1
        cores, nice, policy = self._scheduling[os.getpid()]
        for thread in now:
            with suppress(OSError):
                os.sched_setaffinity(thread, cores)
            with suppress(OSError):
                os.sched_setscheduler(thread, policy, os.sched_param(0))
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, nice)
        return self._slowed

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for process in self._running:
                _signal_group(process, signal.SIGKILL)

    def _start(
        self,
        command: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._interrupted:
                raise InterruptedBuildError
            process = start_session(
                command,
                cwd=folder,
                env=dict(variables),
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
            )
            self._running.add(process)
        _restrain(process.pid)
        return process

    def _kill_rest(self, process: subprocess.Popen[bytes], marker: bytes) -> None:
        """Kill all that the process left, which would disturb the next measurements."""
        _signal_group(process, signal.SIGKILL)
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        kill_orphans(process.pid, marker)
        with self._lock:
            # Its number is free after wait(); another process with it must not be killed.
            self._running.discard(process)
            process.wait()


def wait_for(futures: Iterable[Future[Any]], *, first: bool = False) -> set[Future[Any]]:
    """Wait until all futures have ended, or the first of them; return those that have.

    The main thread must wake up now and then: a signal may be delivered to any thread, but Python runs its handler
    in the main thread, which does not wake it up.
    """
    pending = set(futures)
    while True:
        done, running = wait(pending, _WAIT_SECONDS, FIRST_COMPLETED if first else ALL_COMPLETED)
        if not running or (first and done):
            return done


def scheduling(pid: int) -> dict[int, tuple[frozenset[int], int, int]]:
    """Return the cores, niceness and policy of each thread of a process; empty where the system has no such things."""
    found = {}
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").iterdir():
            thread = int(path.name)
            with suppress(ProcessLookupError):
                cores = frozenset(os.sched_getaffinity(thread))
                found[thread] = cores, os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)
    return found


def _restrain(pid: int) -> None:
    """Disable core files, and make the kernel prefer the process when it must free memory."""
    try:
        import resource

        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(_OOM_SCORE)
    except (ImportError, AttributeError, OSError):  # not Linux, or it has ended
        return


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without releasing its number."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait(process: subprocess.Popen[bytes], check: Callable[[], Stop | None]) -> Stop | None:
    """Wait until the process has ended, or ``check``, called repeatedly, returns why it must be ended."""
    poll, file, seconds = select.poll(), -1, _CHECK_SECONDS
    try:
        file = os.pidfd_open(process.pid)
        poll.register(file, select.POLLIN)
    except (AttributeError, OSError):  # not Linux: check more often
        seconds = 0.01
    try:
        while not _has_ended(process):
            if stop := check():
                return stop
            poll.poll(1000 * seconds)
    finally:
        if file >= 0:
            os.close(file)
    return None


def _end(process: subprocess.Popen[bytes], *, gently: bool) -> None:
    """Kill the process; if ``gently``, send SIGTERM and give it time, since the caller kills the rest."""
    _signal_group(process, signal.SIGTERM if gently else signal.SIGKILL)
    if gently:
        deadline = time.monotonic() + _GRACE_SECONDS
        _wait(process, lambda: Stop.TIMEOUT if time.monotonic() >= deadline else None)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
