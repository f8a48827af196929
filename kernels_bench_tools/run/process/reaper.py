"""Ends everything that a build started, also when the build itself is killed.

A process can leave its session and outlive its parent, but the system then makes it a child of this process, which is
a subreaper. Should ``kbt`` be killed, what it started is found by the variable ``KBT_OWNER``, which children inherit. This
module is also a program, started once per build: it waits for the end of ``kbt`` on a pipe, kills what is left and
removes the build's temporary folder. If it was killed as well, the next build does both.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.own_process import import_paths, isolated_command

OWNER_VARIABLE = "KBT_OWNER"
"""Variable of every started process; its value is :func:`owner_name`."""

_FOLDER_PREFIX = "kbt-"
_PROC = Path("/proc")
_ROUNDS = 100
_QUIET_ROUNDS = 3
_QUIET_SECONDS = 0.001
_ORPHAN_SECONDS = 10.0
_SET_CHILD_SUBREAPER = 36
"""Option of Linux's ``prctl``."""
_PAUSE_SECONDS = 0.02
_lock = threading.Lock()
_current: Reaper | None = None
_starting = threading.Lock()
_started: set[int] = set()
"""Children of this process that are no orphans, although they lead sessions."""


class Reaper:
    """The processes and the temporary folder of this process, and the program that clears both away."""

    def __init__(self) -> None:
        kill_processes(OWNER_VARIABLE, is_abandoned)
        _remove_abandoned_folders()
        self.pid = os.getpid()
        self.owner = owner_name()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{self.owner}-")).resolve()
        """Where cells have their folders."""
        # In a session of its own, so that Ctrl-C does not reach it.
        self._process = start_session(
            isolated_command(
                f"import sys; sys.path += {import_paths()}; from {__name__} import wait_beside; "
                f"wait_beside({self.owner!r}, {str(self.folder)!r})"
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
        )
        with suppress(OSError, AttributeError):  # not Linux: only process groups are ended
            import ctypes

            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)

    def dismiss(self) -> None:
        """End the program, since this process ends normally; remove the folder."""
        if self.pid != os.getpid():  # this is a fork
            return
        remove_tree(self.folder, self.folder.parent)
        try:
            self._process.communicate(b".", timeout=1)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def reaper() -> Reaper:
    """Return this process's reaper, which is started by the first call."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Reaper()
            atexit.register(_current.dismiss)
        return _current


def owner_name() -> str:
    """Return a unique name of this process: ids are used again, and differ between containers."""
    return f"{os.getpid()}-{_start_time(os.getpid())}-{_namespace()}"


def is_abandoned(owner: str) -> bool:
    """Return whether the process of this name has ended; False if it is not of this machine or container."""
    pid, _, rest = owner.partition("-")
    started, _, namespace = rest.partition("-")
    if not (pid.isdigit() and started.isdigit()) or namespace != _namespace():
        return False
    return _start_time(int(pid)) != started


def kill_processes(name: str, wanted: Callable[[str], bool]) -> int:
    """Kill every process whose variable ``name`` has a ``wanted`` value, until none is left; return how many."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = set(_find(name, wanted))
        if not found:
            break
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if found <= killed:  # they are still ending
            time.sleep(_PAUSE_SECONDS)
        killed |= found
    return len(killed)


def start_session(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; ``options`` are those of ``Popen``."""
    with _starting:
        process = subprocess.Popen(command, start_new_session=True, **options)
        _started.add(process.pid)
    return process


def reap_orphans() -> None:
    """Release the numbers of orphans that have ended."""
    with _starting:
        for pid in _orphans():
            _reap(pid)


def kill_orphans(leader: int, marker: bytes) -> None:
    """Kill the orphans of a session, and those with ``marker`` in their variables, until none is left.

    They may be forking meanwhile, each in a session of its own: nothing must happen in several rounds.
    """
    quiet, deadline = 0, time.monotonic() + _ORPHAN_SECONDS
    while quiet < _QUIET_ROUNDS and time.monotonic() < deadline:
        active = False
        with _starting:
            for pid in _orphans():
                if _reap(pid):
                    active = True
                elif _is_of(pid, leader, marker):
                    active = True
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        quiet = 0 if active else quiet + 1
        if not active:  # the system's list may lack a child that is just being added
            time.sleep(_QUIET_SECONDS)


def orphans_of(leader: int, marker: bytes) -> list[int]:
    """Return the orphans of a session, and those with ``marker`` in their variables."""
    with _starting:
        return [pid for pid in _orphans() if _is_of(pid, leader, marker)]


def _is_of(pid: int, leader: int, marker: bytes) -> bool:
    try:
        return os.getsid(pid) == leader or marker in _read(pid, "environ")
    except OSError:  # it has ended
        return False


def _orphans() -> list[int]:
    """Return the children of this process that others have started."""
    children: set[int] = set()
    for task in (_PROC / "self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            children.update(map(int, task.read_bytes().split()))
    _started.intersection_update(children)
    session, found = os.getsid(0), []
    for pid in children - _started:
        with suppress(OSError):
            if os.getsid(pid) != session:
                found.append(pid)
    return found


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _find(name: str, wanted: Callable[[str], bool]) -> Iterator[int]:
    start = b"\0" + os.fsencode(name) + b"="
    for pid in _pids():
        try:
            _, found, rest = (b"\0" + _read(pid, "environ")).partition(start)
        except OSError:
            continue
        if found and pid != os.getpid() and wanted(os.fsdecode(rest.partition(b"\0")[0])):
            yield pid


def _pids() -> list[int]:
    if not (_PROC / "self").exists():  # not Linux: only process groups are ended
        return []
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - several times faster


def _stat(pid: int) -> list[bytes]:
    """Return the fields of ``/proc/PID/stat`` behind the name, which may contain anything."""
    stat = _read(pid, "stat")
    return stat[stat.rindex(b")") + 2 :].split()


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - of every process, after each cell
        return file.read()


def _start_time(pid: int) -> str:
    """Return when a process started, in ticks since the machine did; empty if there is no such process."""
    try:
        return _stat(pid)[19].decode()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return "".join(filter(str.isdigit, str((_PROC / "self" / "ns" / "pid").readlink())))
    except OSError:
        return "0"


def _remove_abandoned_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*-*-*"):
        owner = folder.name.removeprefix(_FOLDER_PREFIX).rpartition("-")[0]
        if is_abandoned(owner):
            remove_tree(folder, folder.parent)


def wait_beside(owner: str, folder: str) -> None:
    """Wait until ``kbt`` ends; unless it dismisses this program, kill what is left and remove its folder."""
    if sys.stdin.buffer.read(1):
        return
    quiet = 0
    # A process that was just being started appears a moment later.
    while quiet < _QUIET_ROUNDS:
        quiet = 0 if kill_processes(OWNER_VARIABLE, owner.__eq__) else quiet + 1
        time.sleep(_PAUSE_SECONDS)
    remove_tree(Path(folder), Path(folder).parent)
