"""The memory that a cell's processes use together. Imported only when a cell runs: psutil takes a while."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil

from kernels_bench_tools.run.process.reaper import orphans_of

_DEFAULT_SHARE = 0.9
_INTERVAL_SECONDS = 0.25
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class MemoryWatch:
    """Checks the memory of a process, its descendants and their orphans against a limit, a few times per second.

    ``limit`` is in bytes; None for none, 0 for nine tenths of the memory of this machine, or of this container. A limit
    on the address space would be simpler, but CUDA reserves more of it than a machine has memory.
    """

    def __init__(self, leader: int, marker: bytes, limit: int | None) -> None:
        self._leader, self._marker = leader, marker
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
        members = set()
        for pid in (self._leader, *orphans_of(self._leader, self._marker)):
            with suppress(psutil.Error):  # it has ended
                process = psutil.Process(pid)
                members |= {process, *process.children(recursive=True)}
        # The exact value takes longer to find out.
        if sum(map(_used, members)) > self._limit:
            used = sum(_used(process, exact=True) for process in members)
            self.used = used if used > self._limit else 0
        return self.used > 0


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
