"""The memory that a cell's processes use together. Imported only when a cell runs: psutil takes a while."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.run.process.reaper import orphans_of

_DEFAULT_SHARE = 0.9
_INTERVAL_SECONDS = 0.25
_SHARED = Path("/dev/shm")  # noqa: S108 - only looked at
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class MemoryWatch:
    """Checks the memory of a process, its descendants and their orphans against a limit, a few times per second.

    Files in memory count, too: those that the processes have open, and those that they left in ``/dev/shm``.

    ``limit`` is in bytes; None for none, 0 for nine tenths of the memory of this machine, or of this container. A limit
    on the address space would be simpler, but CUDA reserves more of it than a machine has memory.
    """

    def __init__(self, leader: int, marker: bytes, limit: int | None) -> None:
        self._leader, self._marker = leader, marker
        self._limit = _default_limit() if limit == 0 else limit
        self._next = 0.0
        self._others = {entry.inode() for entry in _entries(_SHARED)}
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
        files = sum(self._in_memory(process.pid for process in members).values())
        # The exact value takes longer to find out.
        if sum(_resident(process) for process in members) + files > self._limit:
            total, shared = map(sum, zip(*map(_proportional, members), strict=True)) if members else (0, 0)
            used = total + max(0, files - shared)  # files that are mapped are in both
            self.used = used if used > self._limit else 0
        return self.used > 0

    def remove_files(self) -> None:
        """Remove what the processes, which have ended, left in ``/dev/shm``, unless another process uses it."""
        if left := self._left():
            used = {_number(file) for pid in psutil.pids() for file in _files(Path(f"/proc/{pid}/fd"))}
            for path in left:
                if used.isdisjoint(map(_number, _files(path))):
                    remove_tree(path, _SHARED)

    def _in_memory(self, members: Iterable[int]) -> dict[tuple[int, int], int]:
        """Return the bytes of each file in memory that is open, or was left in ``/dev/shm``."""
        folders = [*(Path(f"/proc/{pid}/fd") for pid in members), *self._left()]
        devices = _devices_in_memory()
        return {
            _number(file): 512 * file.st_blocks
            for folder in folders
            for file in _files(folder)
            if file.st_dev in devices
        }

    def _left(self) -> list[Path]:
        """Return what this user put into ``/dev/shm`` since the process was started."""
        return [
            _SHARED / entry.name
            for entry in _entries(_SHARED)
            if entry.inode() not in self._others and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        ]


def _devices_in_memory() -> set[int]:
    """Return the devices of the file systems in memory, also of the one that ``memfd_create`` uses."""
    devices = set()
    for partition in psutil.disk_partitions(all=True):
        if partition.fstype == "tmpfs":
            with suppress(OSError):
                devices.add(Path(partition.mountpoint).stat().st_dev)
    with suppress(OSError, AttributeError):  # not Linux
        descriptor = os.memfd_create("device")
        devices.add(os.fstat(descriptor).st_dev)
        os.close(descriptor)
    return devices


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # there is none, or it is not ours
        return []


def _files(path: Path) -> Iterator[os.stat_result]:
    """Return what is known of a file, or of all files below a folder, without recursion."""
    pending = [path]
    while pending:
        folder = pending.pop()
        with suppress(OSError):  # it has gone
            yield folder.stat()
        if not folder.is_symlink():
            pending += [folder / entry.name for entry in _entries(folder)]


def _number(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def _proportional(process: psutil.Process) -> tuple[int, int]:
    """Return the bytes of a process, and those of them that are files in memory; pages that processes share count once."""
    try:
        rows = (line.split() for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines())
        sizes = {row[0]: 1024 * int(row[1]) for row in rows if row[0].startswith("Pss")}
        return sizes["Pss:"], sizes.get("Pss_Shmem:", 0)
    except (OSError, KeyError):  # it has ended, or this is not Linux
        return _resident(process), 0


def _default_limit() -> int:
    limits = [psutil.virtual_memory().total]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # there is none, or it is "max"
            continue
    return int(_DEFAULT_SHARE * min(limits))
