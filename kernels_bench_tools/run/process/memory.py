"""How much memory a cell's processes hold together."""

from __future__ import annotations

import os
import time
from pathlib import Path

_DEFAULT_SHARE = 0.9
_LOOK_SECONDS = 0.25
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def default_memory_limit() -> int:
    """Return nine tenths of the memory that this machine, or this container, has."""
    limits = [_machine()[0]]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # there is none, or it says "max"
            continue
    return int(_DEFAULT_SHARE * min(limits))


class MemoryWatch:
    """Looks now and then at the memory of a process and of all that it started.

    A limit on the address space would be simpler, but CUDA reserves more of it than any machine has memory.
    """

    def __init__(self, leader: int, limit: int) -> None:
        self._leader = leader
        self._limit = limit
        self._next = 0.0

    def excess(self) -> int:
        """Return how many bytes the processes hold if that is over the limit, else 0."""
        now = time.monotonic()
        if now < self._next:
            return 0
        self._next = now + _LOOK_SECONDS
        total, available = _machine()
        if total - available < self._limit:  # all processes of the machine together hold less
            return 0
        members = self._members()
        if sum(_resident(one) for one in members) <= self._limit:
            return 0
        # What processes share counts once; finding that out takes longer.
        used = sum(_proportional(one) for one in members)
        return used if used > self._limit else 0

    def _members(self) -> list[object]:
        """Return the processes of the session, and those that left it but not their parents."""
        import psutil

        members = {one.pid: one for one in psutil.process_iter() if _session(one.pid) == self._leader}
        for one in list(members.values()):
            try:
                members |= {child.pid: child for child in one.children(recursive=True)}
            except psutil.Error:
                continue
        return list(members.values())


def _machine() -> tuple[int, int]:
    """Return how many bytes of memory the machine has, and how many of them are to be had."""
    try:
        # psutil says the same; to import it takes longer than a small cell.
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {
            name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)
        }
        return sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        import psutil

        machine = psutil.virtual_memory()
        return machine.total, machine.available


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _resident(process: object) -> int:
    import psutil

    try:
        return int(process.memory_info().rss)  # type: ignore[attr-defined]
    except psutil.Error:
        return 0


def _proportional(process: object) -> int:
    import psutil

    try:
        return int(process.memory_full_info().pss)  # type: ignore[attr-defined]
    except (psutil.Error, AttributeError):  # only Linux tells
        return _resident(process)
