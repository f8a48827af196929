"""Processes that are forks of one that has imported torch, or what draws charts, which takes seconds.

Each is a child of ``kbt``, in a session of its own, with the variables, files and folder that it would have been started
with. The process that forks runs no code of a cell. Forks have its hash seed and its addresses, so they are no
substitute for the fresh processes whose differences are measured.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from kernels_bench_tools.run.process.confined import confined
from kernels_bench_tools.run.process.reaper import OWNER_VARIABLE, adopt, conditions, reaper, start_session

READY_SECONDS, FORK_SECONDS = 120.0, 10.0
ROOM = "KBT_ROOM"
"""Variable that makes room for the variables of forks: other processes read them where those of the first one were."""
_ROOM_BYTES = 2**16


def can_fork(device_kind: str = "", processes: int = 1) -> bool:
    """Return whether forks are as good as processes that are started, for so many that measure the same.

    On a CPU, several are to differ in all that differs from process to process, such as addresses.
    """
    return sys.platform == "linux" and (device_kind != "cpu" or processes == 1)


GO = b"go"
"""What a fork waits for, see :mod:`kernels_bench_tools.forking`."""


class Fork:
    """A forked process, with what :class:`subprocess.Popen` has of one that it started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class Forker:
    """A process that forks when it is asked to; ``command`` starts one that calls :func:`.fork_for_messages`."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            shown = {**variables, ROOM: "x" * _ROOM_BYTES, OWNER_VARIABLE: reaper().owner}
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            start = partial(start_session, command, cwd=folder, env=shown, stdin=there, **silent)
            self._process = confined(start, variables)
        self._failed = self._has_imported = False
        self._lock = threading.Lock()
        self._conditions = conditions(self._process.pid)

    @property
    def is_spent(self) -> bool:
        """Whether another one is to take its place: it has failed, or a cell has changed its cores, priority or limits.

        Where it could not import, as with another version of this package, another one could not either.
        """
        if self._failed:
            return self._has_imported
        return conditions(self._process.pid) != self._conditions

    def wait(self) -> None:
        """Wait until it has imported."""
        with self._lock:
            try:
                if not self._has_imported:
                    self._has_imported = bool(_receive(self._socket, READY_SECONDS))
            except OSError:
                self.close()

    def fork(self, script: str, folder: Path, variables: Mapping[str, str], streams: Sequence[int]) -> Fork:
        """Return a copy of the process that runs a script with these standard streams; ``OSError`` if it has failed."""
        # Not msgspec, which refuses variables that are not UTF-8.
        message = json.dumps({"script": script, "folder": str(folder), "variables": {**variables}}).encode()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def ask() -> int:
            with there:
                socket.send_fds(self._socket, [message], [*streams, there.fileno()])
            return int(_receive(here, FORK_SECONDS))

        try:
            with here:
                pid = adopt(ask)
                # A fork that comes too late has no answer, and ends: what it would read is for another process then.
                here.send(GO)
            return Fork(pid)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self._failed = True
        self._socket.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def _receive(channel: socket.socket, seconds: float) -> bytes:
    channel.settimeout(seconds)
    if not (answer := channel.recv(64)):
        raise OSError("the process that forks has ended")
    return answer
