"""Processes that can be ended whole: with everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_LIMIT = 64 * 2**20
"""Bytes that a process may print on either stream; one that loops would fill the disk."""

_GRACE_SECONDS = 2.0
_SLOWEST_LOOK_SECONDS = 0.05


class InterruptedBuildError(Exception):
    """The build is being interrupted: nothing may be started any more."""


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    code: int
    """As ``subprocess`` has it: negative for a signal."""
    seconds: float
    timed_out: bool = False
    flooded: bool = False
    """Whether it was ended for printing more than ``LOG_LIMIT``."""


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
    ) -> Exit:
        """Run a command to its end, and see to it that nothing of it is left then.

        Args:
            command: Program and arguments.
            folder: Its current folder.
            variables: Its whole environment.
            stdout: File for its standard output, as bytes.
            stderr: File for its standard error, as bytes.
            timeout: Seconds after which it is ended.
            marker: A variable and its value by which processes that left the session are found.
            watch: Called now and then while it runs, and once after.

        Raises:
            InterruptedBuildError: :meth:`interrupt` was called.
            OSError: It cannot be started.
        """
        started = time.monotonic()
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = self._start(command, folder, variables, (out.fileno(), err.fileno()))
            try:
                timed_out, flooded = _wait(process, started + timeout, (stdout, stderr), watch)
                if timed_out or flooded:
                    _end(process)
                seconds = time.monotonic() - started
            finally:
                _kill_rest(process, marker)
                with self._lock:
                    self._running.discard(process)
        watch()
        if self._interrupted:
            raise InterruptedBuildError
        return Exit(process.returncode, seconds, timed_out, flooded)

    def interrupt(self) -> None:
        """End everything that runs, and let nothing start any more."""
        with self._lock:
            self._interrupted = True
            running = list(self._running)
        for process in running:
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
            return process


def _wait(
    process: subprocess.Popen[bytes], deadline: float, logs: Sequence[Path], watch: Callable[[], None]
) -> tuple[bool, bool]:
    """Wait for the end, the deadline or too much output; return whether it was one of the latter."""
    pause = 0.001
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return True, False
        if any(log.stat().st_size > LOG_LIMIT for log in logs):
            return False, True
        watch()
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, _SLOWEST_LOOK_SECONDS)
    return False, False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, and make it end if it does not."""
    _signal_group(process, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _kill_rest(process: subprocess.Popen[bytes], marker: tuple[str, str] | None) -> None:
    """Kill whatever the process left behind, as it would disturb every measurement after it."""
    _signal_group(process, signal.SIGKILL)
    process.wait()
    if marker is None:
        return
    import psutil  # only builds that run something pay for it

    for one in psutil.process_iter():
        try:
            if one.pid != os.getpid() and one.environ().get(marker[0]) == marker[1]:
                one.kill()
        except (psutil.Error, OSError):
            continue


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
