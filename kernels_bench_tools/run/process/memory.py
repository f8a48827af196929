"""The memory that a cell's processes use together. Imported only when a cell runs: psutil takes a while."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.run.process.reaper import orphans_of

_DEFAULT_SHARE = 0.9
_INTERVAL_SECONDS = 0.25
_REMOVE_SEGMENT = 0  # IPC_RMID
_SHARED = Path("/dev/shm")  # noqa: S108 - only looked at
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def shared_names() -> set[str]:
    """Return the names of the files and folders in ``/dev/shm``."""
    return set(os.listdir(_SHARED)) if _SHARED.is_dir() else set()  # noqa: PTH208


class MemoryWatch:
    """Checks the memory of a process, its descendants and their orphans against a limit, a few times per second.

    Files in memory count, too: those that the processes have open, and those below ``/dev/shm`` that they had open.

    ``limit`` is in bytes; None for none, 0 for nine tenths of the memory of this machine, or of this container. A limit
    on the address space would be simpler, but CUDA reserves more of it than a machine has memory.
    """

    def __init__(self, leader: int, marker: bytes, limit: int | None, others: set[str]) -> None:
        """``others`` is what :func:`shared_names` returned before the process was started."""
        self._leader, self._marker = leader, marker
        limits = [psutil.virtual_memory().total]
        for path in _CGROUP_LIMITS:
            with suppress(OSError, ValueError):  # there is none, or it is "max"
                limits.append(int(path.read_text()))
        self._limit = int(_DEFAULT_SHARE * min(limits)) if limit == 0 else limit
        self._next = 0.0
        self._others = others
        self._files: dict[tuple[int, int], Path] = {}
        """Files below ``/dev/shm`` that the processes made."""
        self._seen: set[int] = set()
        """Numbers of the processes so far."""
        self.used = 0
        """Bytes that the processes used, if that was more than the limit."""

    def excess(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _INTERVAL_SECONDS
        members = set()
        for pid in (self._leader, *orphans_of(self._leader, self._marker)):
            with suppress(psutil.Error):  # it has ended
                process = psutil.Process(pid)
                members |= {process, *process.children(recursive=True)}
        opened = {number: held for process in members for number, held in _open_files(process.pid).items()}
        self._files |= {
            number: path
            for number, (path, _) in opened.items()
            if _SHARED in path.parents and path.relative_to(_SHARED).parts[0] not in self._others
        }
        self._seen |= {process.pid for process in members}
        machine = psutil.virtual_memory()
        if (
            self._limit is None or machine.total - machine.available < self._limit
        ):  # all of the machine uses less
            return False
        devices = _devices_in_memory()
        sizes = {number: file.st_blocks for number, (_, file) in opened.items() if number[0] in devices}
        sizes |= {number: file.st_blocks for number, file in self._left()}
        files = 512 * sum(sizes.values()) + sum(self._segments().values())
        # The exact value takes longer to find out.
        if sum(_resident(process) for process in members) + files > self._limit:
            total, shared = map(sum, zip(*map(_proportional, members), strict=True)) if members else (0, 0)
            used = total + max(0, files - shared)  # files that are mapped are in both
            self.used = used if used > self._limit else 0
        return self.used > 0

    def remove_files(self) -> None:
        """Remove the shared memory that the processes, which have ended, left, and files below ``/dev/shm`` that no other one uses."""
        for segment in self._segments():
            import ctypes

            ctypes.CDLL(None).shmctl(segment, _REMOVE_SEGMENT, None)
        if unused := {number for number, _ in self._left()}:
            for pid in psutil.pids():
                unused -= _open_files(pid).keys()
                with suppress(OSError):
                    mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
                    unused = {number for number in unused if str(self._files[number]) not in mapped}
            for number in unused:
                path = self._files[number]
                remove_tree(path, _SHARED)
                with suppress(OSError):  # it is not empty
                    for folder in path.parents[: -len(_SHARED.parts)]:
                        folder.rmdir()

    def _segments(self) -> dict[int, int]:
        """Return the System V shared memory that the processes made: the bytes in memory of each segment."""
        try:
            rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        except OSError:  # not Linux
            return {}
        # Columns: key, number, permissions, size, creating process, and much later resident and swapped bytes.
        return {int(row[1]): int(row[14]) + int(row[15]) for row in rows if int(row[4]) in self._seen}

    def _left(self) -> Iterator[tuple[tuple[int, int], os.stat_result]]:
        for number, path in self._files.items():
            with suppress(OSError):
                if _number(file := path.lstat()) == number:
                    yield number, file


def _open_files(pid: int) -> dict[tuple[int, int], tuple[Path, os.stat_result]]:
    files = {}
    with suppress(OSError):  # it has ended, or is not ours
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed meanwhile
                file = Path(descriptor).stat()
                files[_number(file)] = Path(descriptor).readlink(), file
    return files


def _number(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


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
