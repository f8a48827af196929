"""Ends everything that a build started, also when the build itself is killed.

A process can leave its session and outlive its parent, but the system then makes it a child of this process, which is
a subreaper. Should ``kbt`` be killed, what it started is found by the variable ``KBT_OWNER``, which children inherit: the
build's temporary folder, which ``kbt`` has locked while it lives. This module is also a program, started once per build:
it waits for the end of ``kbt`` on a pipe, kills what is left and removes that folder. If it was killed as well, the
next build does both.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from kernels_bench_tools.own_folders import make_folder, opened, remove_tree
from kernels_bench_tools.own_process import import_paths, isolated_command

OWNER_VARIABLE = "KBT_OWNER"
"""Variable of every started process; its value is the temporary folder of the ``kbt`` that started it."""

_FOLDER_PREFIX = "kbt-build-"
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
        kill_processes(is_abandoned)
        for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
            with suppress(OSError), _locked(left):
                remove_tree(left, left.parent)
        self.pid = os.getpid()
        self._held = ExitStack()
        self._folder = Path()
        while not self._folder.name:
            made = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX)).resolve()
            # Else another one that is starting has removed it, or is about to.
            if self._hold(made) and made.is_dir():
                self._folder = made
        self.owner = str(self._folder)
        # In a session of its own, so that Ctrl-C does not reach it.
        self._process = start_session(
            isolated_command(
                f"import sys; sys.path += {import_paths()}; from {__name__} import wait_beside; "
                f"wait_beside({self.owner!r})"
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

    @property
    def folder(self) -> Path:
        """Where cells have their folders; made again if one of them has removed it."""
        if not self._folder.is_dir():
            make_folder(self._folder, self._folder.parent, replace=True)
            self._hold(self._folder)
        return self._folder

    def _hold(self, folder: Path) -> bool:
        """Lock a folder until this process ends; return whether that is possible or file systems have no locks."""
        try:
            self._held.enter_context(_locked(folder))
        except OSError as error:
            return not isinstance(error, BlockingIOError | FileNotFoundError)
        return True

    def dismiss(self) -> None:
        """End the program, since this process ends normally; remove the folder."""
        if self.pid != os.getpid():  # this is a fork
            return
        remove_tree(self._folder, self._folder.parent)
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


def is_abandoned(owner: str) -> bool:
    """Return whether the ``kbt`` with this folder has ended; False if there is no such folder here, as in a container."""
    folder = Path(owner)
    if not folder.is_absolute() or not folder.name.startswith(_FOLDER_PREFIX):
        return False
    with suppress(OSError), _locked(folder):
        return True
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder, which is no link; a ``BlockingIOError`` if another process has locked it."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def scheduling(pid: int) -> dict[int, tuple[frozenset[int], int, int]]:
    """Return the cores, niceness and policy of each thread of a process; empty where the system has no such things."""
    threads = {}
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").iterdir():
            thread = int(path.name)
            with suppress(ProcessLookupError):
                cores = frozenset(os.sched_getaffinity(thread))
                nice, policy = os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)
                threads[thread] = cores, nice, policy
    return threads


def conditions(pid: int) -> object:
    """Return cores, priority and limits of a process, which others of its user can change; None where nothing is known."""
    with suppress(OSError):  # the system has no such file
        return scheduling(pid).get(pid), (_PROC / str(pid) / "limits").read_bytes()
    return None


def kill_processes(wanted: Callable[[str], bool]) -> int:
    """Kill every process whose ``KBT_OWNER`` is ``wanted``, until none is left; return how many."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        alive = set(_find(wanted))
        if not alive:
            break
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if alive <= killed:  # they are still ending
            time.sleep(_PAUSE_SECONDS)
        killed |= alive
    return len(killed)


def start_session(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; ``options`` are those of ``Popen``."""
    with _starting:
        process = subprocess.Popen(command, start_new_session=True, **options)
        _started.add(process.pid)
    return process


def adopt(start: Callable[[], int]) -> int:
    """Return the number of the process that ``start`` makes a child of this one; it is no orphan."""
    with _starting:
        pid = start()
        _started.add(pid)
    return pid


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
    except PermissionError:  # it hides its variables, as no program of ours does
        return True
    except OSError:  # it has ended
        return False


def _orphans() -> list[int]:
    """Return the children of this process that others have started."""
    children: set[int] = set()
    for task in (_PROC / "self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            children.update(map(int, task.read_bytes().split()))
    for pid in _started - children:  # one moves to another thread when the one that started it ends
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, AttributeError):  # it has ended; not Linux
            _started.discard(pid)
    session, orphans = os.getsid(0), []
    for pid in children - _started:
        with suppress(OSError):
            if os.getsid(pid) != session:
                orphans.append(pid)
    return orphans


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _find(wanted: Callable[[str], bool]) -> Iterator[int]:
    start = f"\0{OWNER_VARIABLE}=".encode()
    if not (_PROC / "self").exists():  # not Linux: only process groups are ended
        return
    for pid in map(int, filter(str.isdigit, os.listdir(_PROC))):  # noqa: PTH208 - several times faster
        try:
            _, is_set, rest = (b"\0" + _read(pid, "environ")).partition(start)
        except OSError:
            continue
        if is_set and pid != os.getpid() and wanted(os.fsdecode(rest.partition(b"\0")[0])):
            yield pid


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - of every process, after each cell
        return file.read()


def wait_beside(owner: str) -> None:
    """Wait until ``kbt`` ends; unless it dismisses this program, kill what is left and remove its folder."""
    if sys.stdin.buffer.read(1):
        return
    quiet = 0
    # A process that was just being started appears a moment later.
    while quiet < _QUIET_ROUNDS:
        quiet = 0 if kill_processes(owner.__eq__) else quiet + 1
        time.sleep(_PAUSE_SECONDS)
    remove_tree(Path(owner), Path(owner).parent)
