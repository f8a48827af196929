"""The memory that a cell's processes use together. Imported only when a cell runs: psutil takes a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

_DEFAULT_SHARE = 0.9
_INTERVAL_SECONDS = 0.25
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class MemoryWatch:
    """Checks the memory of a session's processes and their descendants against a limit, a few times per second.

    ``limit`` is in bytes; None for none, 0 for nine tenths of the memory of this machine, or of this container. A limit
    on the address space would be simpler, but CUDA reserves more of it than a machine has memory.
    """

    def __init__(self, leader: int, limit: int | None) -> None:
        self._leader = leader
        self._limit = _default_limit() if limit == 0 else limit
        self._next = 0.0
        self.used = 0
        """Bytes that the processes used, if that was more than the limit."""

    def excess(self) -> bool:
        if self._limit is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _INTERVAL_SECONDS
        machine = psutil.virtual_memory()
        if machine.total - machine.available < self._limit:  # all processes of the machine together use less
            return False
        members = self._members()
        # The exact value takes longer to find out.
        if sum(_used(one) for one in members) > self._limit:
            used = sum(_used(one, exact=True) for one in members)
            self.used = used if used > self._limit else 0
        return self.used > 0

    def _members(self) -> set[psutil.Process]:
        """Return the processes of the session, and their descendants in other sessions."""
        members = set()
        for one in psutil.process_iter():
            try:
                if os.getsid(one.pid) == self._leader:
                    members |= {one, *one.children(recursive=True)}
            except (OSError, psutil.Error):  # it has ended
                continue
        return members


def _used(process: psutil.Process, *, exact: bool = False) -> int:
    """Return the memory of a process; if ``exact``, shared pages count once."""
    try:
        info = process.memory_full_info() if exact else process.memory_info()
        return int(getattr(info, "pss", info.rss))  # only Linux has pss
    except psutil.Error:  # it has ended, or is not ours
        return _used(process) if exact else 0


def _default_limit() -> int:
    limits = [psutil.virtual_memory().total]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
    return int(_DEFAULT_SHARE * min(limits))
