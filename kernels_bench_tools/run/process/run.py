"""Processes that are ended together with everything that they started."""

from __future__ import annotations

import os
import resource
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
from functools import partial
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.run.logs import Logs
from kernels_bench_tools.run.process.confined import confined
from kernels_bench_tools.run.process.forks import Fork, Forker
from kernels_bench_tools.run.process.reaper import (
    OWNER_VARIABLE,
    kill_orphans,
    reap_orphans,
    reaper,
    scheduling,
    start_session,
)

LOG_LIMIT = 2**30
"""Maximum number of bytes that a process may print to either stream."""

_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals of other processes: of a user, or of a system without memory."""
_GRACE_SECONDS = 2.0
_CHECK_SECONDS = 0.05
_WAIT_SECONDS = 0.25
_OOM_SCORE = b"500"
"""If memory runs out, the kernel kills a cell before ``kbt``."""


Running = subprocess.Popen[bytes] | Fork


class InterruptedBuildError(Exception):
    """The build is being interrupted: nothing may be started any more."""


class Stop(Enum):
    TIMEOUT = "timeout"
    OUTPUT = "output"
    """It printed more than ``LOG_LIMIT``."""
    MEMORY = "memory"


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a process is started with."""

    command: Sequence[str]
    folder: Path
    variables: Mapping[str, str]
    marker: str = f"{OWNER_VARIABLE}=none"
    """``NAME=value`` of a variable, by which processes that left the session are found."""
    stdin: int = subprocess.DEVNULL
    forker: Forker | None = None
    """What forks the process, which runs the script at the end of the command; None if it is started."""


@dataclass(frozen=True)
class Limits:
    """What a process may use."""

    seconds: float
    memory: int | None = None
    """That of :class:`MemoryWatch`, in bytes."""


@dataclass(frozen=True)
class Exit:
    code: int
    """As in ``subprocess``: negative for a signal."""
    seconds: float
    stop: Stop | None = None
    """Why it was ended; None if it ended by itself."""
    memory: int = 0
    """Bytes that it used, if that was too much."""

    @property
    def signal_number(self) -> int:
        """The signal that ended it, also as a shell reports it; meaningless for other exit codes."""
        return -self.code if self.code < 0 else self.code - 128

    @property
    def from_outside(self) -> bool:
        """Whether it was ended by something else than the cell and ``kbt``."""
        return self.stop is None and self.signal_number in _FROM_OUTSIDE


class Processes:
    """The processes of one build, each in a session of its own; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Running] = set()
        self._started = 0
        self._interrupted = False
        self._scheduling, self._limits, self._changes = scheduling(os.getpid()), _limits(), 0

    def run(
        self, start: Start, limits: Limits, logs: Logs, watch: Callable[[], bool] = lambda: False
    ) -> Exit:
        """Run a process to its end, then kill every process that it has left.

        ``watch`` is called repeatedly while it runs, and once after; while it returns true, the time does not count.
        After :meth:`interrupt`, an ``InterruptedBuildError`` is raised.
        """
        from kernels_bench_tools.run.process.memory import MemoryWatch, shared_names

        if start.forker:
            start.forker.wait()
        began = time.monotonic()
        with logs.opened() as files:
            others = shared_names()
            process = self._start(start, files)
            marker = os.fsencode(start.marker)
            memory = MemoryWatch(process.pid, marker, limits.memory, others)

            def check() -> Stop | None:
                nonlocal began
                self._restore_limits()  # before this process needs more than it is left
                waits = watch()
                logs.follow()
                reap_orphans()
                if waits:
                    began = time.monotonic()
                if time.monotonic() >= began + limits.seconds:
                    return Stop.TIMEOUT
                if any(os.fstat(file).st_size > LOG_LIMIT for file in files):
                    return Stop.OUTPUT
                if memory.excess():
                    return Stop.MEMORY
                return None

            try:
                stop = _wait(process, check)
                if stop is not None and stop is not Stop.MEMORY:
                    _end_gently(process)
                seconds = time.monotonic() - began
            finally:
                self._kill_rest(process, marker)
                memory.remove_files()
        watch()
        if self._interrupted:
            raise InterruptedBuildError
        assert process.returncode is not None
        return Exit(process.returncode, seconds, stop, memory.used)

    def ended(self) -> int | None:
        """Return how many processes have been started and have ended; None while one runs."""
        with self._lock:
            return None if self._running else self._started

    def changes(self) -> int:
        """Return how often cores, priority or limits of this process were found to be changed, and undo it.

        A process can do that to others of its user. All that they start then inherits it. Limits that cannot be raised again
        are a ``KbtError``.
        """
        self._restore_limits()
        now = scheduling(os.getpid())
        if set(now.values()) <= set(self._scheduling.values()):
            return self._changes
        self._changes += 1
        cores, nice, policy = self._scheduling[os.getpid()]
        for thread in now:
            with suppress(OSError):
                os.sched_setaffinity(thread, cores)
            with suppress(OSError):
                os.sched_setscheduler(thread, policy, os.sched_param(0))
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, nice)
        return self._changes

    def _restore_limits(self) -> None:
        for name, now in _limits().items():
            if now == self._limits[name]:
                continue
            self._changes += 1
            try:
                resource.setrlimit(getattr(resource, name), self._limits[name])
            except (OSError, ValueError):
                what = f"a process has lowered {name} of kbt to {now}, which later cells would inherit"
                raise KbtError("kbt", what, "", "Find the cell that did it, and build again") from None

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for process in self._running:
                _signal_group(process, signal.SIGKILL)

    def _start(self, start: Start, files: tuple[int, int]) -> Running:
        variables = {**start.variables, OWNER_VARIABLE: reaper().owner}
        with self._lock:
            if self._interrupted:
                raise InterruptedBuildError
            process: Running | None = None
            with suppress(OSError):  # what forks has failed
                if start.forker:
                    with Path(os.devnull).open() as null:
                        streams = null.fileno() if start.stdin < 0 else start.stdin, *files
                        process = start.forker.fork(start.command[-1], start.folder, variables, streams)
            options = {"cwd": start.folder, "env": variables, "stdin": start.stdin}
            started = partial(start_session, start.command, **options, stdout=files[0], stderr=files[1])
            process = process or confined(started, variables)
            self._running.add(process)
            self._started += 1
        _restrain(process.pid)
        return process

    def _kill_rest(self, process: Running, marker: bytes) -> None:
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


def _limits() -> dict[str, tuple[int, int]]:
    names = [name for name in vars(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _restrain(pid: int) -> None:
    """Disable core files, and make the kernel prefer the process when it must free memory."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(_OOM_SCORE)
    except (AttributeError, OSError):  # not Linux, or it has ended
        return


def _has_ended(process: Running) -> bool:
    """Return whether a process has ended, without releasing its number."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait(process: Running, check: Callable[[], Stop | None]) -> Stop | None:
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


def _end_gently(process: Running) -> None:
    """Send SIGTERM and give the process time to end."""
    _signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    _wait(process, lambda: Stop.TIMEOUT if time.monotonic() >= deadline else None)


def _signal_group(process: Running, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
