"""Finds processes that a build left behind, by a variable that it gives to every process it starts.

A process can leave its session and outlive its parent, but what it starts inherits its variables. This file is
also a program, which waits beside ``kbt`` and ends what is left if ``kbt`` itself is killed; hence it imports
nothing but the standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

OWNER_VARIABLE = "KBT_OWNER"
"""Which ``kbt`` started a process, as ``owner_name`` says it."""

_PROC = Path("/proc")
_ROUNDS = 100
_QUIET_ROUNDS = 3
_PAUSE_SECONDS = 0.02
_EXEC_SECONDS = 0.002
_EXITING, _KERNEL_THREAD = 0x4, 0x200000
"""Flags in ``/proc/PID/stat``."""


def owner_name() -> str:
    """Return what tells this process from all others that this machine has had since it started.

    A process id alone is used again, and means another process in another container.
    """
    return f"{os.getpid()}-{_start_time(os.getpid())}-{_namespace()}"


def is_abandoned(owner: str) -> bool:
    """Return whether the process of this name has ended; False if that cannot be told from here."""
    pid, _, rest = owner.partition("-")
    started, _, namespace = rest.partition("-")
    if not (pid.isdigit() and started.isdigit()) or namespace != _namespace():
        return False
    return _start_time(int(pid)) != started


def kill_processes(name: str, wanted: Callable[[str], bool]) -> int:
    """Kill every process with a variable ``name`` whose value is ``wanted``, until none is left.

    Returns:
        How many there were.
    """
    return _kill_all(lambda: _find(name, wanted))


def kill_session(leader: int) -> int:
    """Kill every process of a session, until none is left but its leader; return how many there were.

    A group is not all of it: a shell makes one for each of its jobs.
    """
    return _kill_all(lambda: _find_session(leader))


def _kill_all(find: Callable[[], Iterable[int]]) -> int:
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = list(find())
        if not found:
            break
        for pid in found:
            _kill(pid)
        if killed.issuperset(found):  # they are on their way
            time.sleep(_PAUSE_SECONDS)
        killed.update(found)
    return len(killed)


def _find(name: str, wanted: Callable[[str], bool]) -> Iterator[int]:
    start = os.fsencode(name) + b"="
    for pid, variables in _environments():
        if start in variables and pid != os.getpid():
            values = [one[len(start) :] for one in variables.split(b"\0") if one.startswith(start)]
            if any(wanted(os.fsdecode(value)) for value in values):
                yield pid


def _find_session(leader: int) -> Iterator[int]:
    for pid in _pids():
        try:
            if pid != leader and os.getsid(pid) == leader and not _is_zombie(pid):
                yield pid
        except OSError:
            continue


def _pids() -> list[int]:
    if not (_PROC / "self").exists():
        return []
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - several times faster


def _environments() -> Iterator[tuple[int, bytes]]:
    """Yield each process of this user, with the variables that it was started with."""
    if not (_PROC / "self" / "environ").exists():
        yield from _environments_elsewhere()
        return
    for pid in _pids():
        try:
            yield pid, _variables(pid)
        except OSError:
            continue


def _variables(pid: int) -> bytes:
    """Return a process's variables; one that is just becoming another program has none for a moment."""
    for _ in range(_ROUNDS):
        variables = _read(pid, "environ")
        if variables or _read(pid, "cmdline") or _has_no_memory(pid):
            break
        time.sleep(_EXEC_SECONDS)
    return variables


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - of every process, after each cell
        return file.read()


def _has_no_memory(pid: int) -> bool:
    """Return whether a process is a zombie, is ending, or is a thread of the kernel: it will never have variables."""
    fields = _fields(_read(pid, "stat"))
    return fields[0] in {b"Z", b"X"} or bool(int(fields[6]) & (_EXITING | _KERNEL_THREAD))


def _environments_elsewhere() -> Iterator[tuple[int, bytes]]:
    try:
        import psutil
    except ImportError:  # in the program that waits, which sees no packages
        return
    for process in psutil.process_iter():
        try:
            pairs = process.environ().items()
        except (psutil.Error, OSError):
            continue
        yield process.pid, b"\0".join(os.fsencode(f"{name}={value}") for name, value in pairs)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _start_time(pid: int) -> str:
    """Return when a process started, in ticks since the machine did; empty if there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return _presence(pid)
    return _fields(stat)[19].decode()


def _is_zombie(pid: int) -> bool:
    return _fields((_PROC / str(pid) / "stat").read_bytes())[0] == b"Z"


def _fields(stat: bytes) -> list[bytes]:
    """Return what is behind the name, which may hold anything, parentheses and spaces included."""
    return stat[stat.rindex(b")") + 2 :].split()


def _presence(pid: int) -> str:
    """Return what stands for the time where there is no ``/proc``: whether there is such a process."""
    if (_PROC / "self").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "0"


def _namespace() -> str:
    try:
        return "".join(filter(str.isdigit, str((_PROC / "self" / "ns" / "pid").readlink())))
    except OSError:
        return "0"


def _wait_beside(owner: str, folder: str) -> None:
    """Wait until ``kbt`` ends; unless it says that all is well, end what it has left and remove its folder."""
    if sys.stdin.buffer.read(1):
        return
    quiet = 0
    # A process that was just being started appears a moment later.
    while quiet < _QUIET_ROUNDS:
        quiet = 0 if kill_processes(OWNER_VARIABLE, owner.__eq__) else quiet + 1
        time.sleep(_PAUSE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _wait_beside(*sys.argv[1:3])
