"""Locks that keep builds of one user apart, and signals that end a build."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from kernels_bench_tools.file_io import find_struct, write_struct
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.own_folders import clear_file, remove_tree
from kernels_bench_tools.records.device import Device, hardware_id
from kernels_bench_tools.run.environment.base import ignore_folder
from kernels_bench_tools.run.environment.variables import cache_folder
from kernels_bench_tools.run.process.run import InterruptedBuildError
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.text.names import slugify

_POLL_SECONDS = 0.25
_LOCK = "lock"


class _Owner(msgspec.Struct):
    """The build that holds a lock."""

    project: str
    pid: int
    since: str


def project_lock(project: Project, progress: Progress) -> AbstractContextManager[bool]:
    """Let one build at a time change a project's state; yield whether it had to wait for another.

    The lock is reentrant: a command holds it over the build and the publication, since another build in between
    would replace results, or remove them from the cache.
    """
    ignore_folder(project.state)
    return _held(project.state / _LOCK, project, "another build is running", progress)


def remove_state(project: Project) -> None:
    """Remove a project's state; its lock must be held, and is the last file that is removed."""
    for path in project.state.iterdir():
        if path.name != _LOCK:
            remove_tree(path, project.root, strict=True)
    (project.state / _LOCK).unlink()
    with suppress(OSError):  # a build that was waiting has begun
        project.state.rmdir()


def device_lock(
    device: Device, gpu: str, project: Project, progress: Progress, stopped: Callable[[], bool]
) -> AbstractContextManager[bool]:
    """Let one session at a time measure on a device, among all builds of this user; ``gpu`` as of :func:`.hardware_id`.

    If ``stopped`` returns true while waiting, an ``InterruptedBuildError`` is raised.
    """
    path = cache_folder("locks") / f"{slugify(hardware_id(device, gpu))}.lock"
    return _held(path, project, f"another build is measuring on {device.slug}", progress, stopped)


@contextmanager
def _held(
    path: Path,
    project: Project,
    other: str,
    progress: Progress,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[bool]:
    clear_file(path)
    lock, described = FileLock(path, is_singleton=True), path.with_name(f"{path.name}.owner")
    waited = False
    while True:
        if stopped():
            raise InterruptedBuildError
        try:
            lock.acquire(timeout=_POLL_SECONDS if waited else 0)
            break
        except Timeout:
            if not waited:
                owner = find_struct(described, _Owner)
                by = f" ({owner.project}, process {owner.pid}, since {owner.since})" if owner else ""
                progress.note(f"{other}{by}; waiting for it to finish")
            waited = True
    try:
        if lock.lock_counter == 1:
            now = datetime.now().astimezone().isoformat(" ", "seconds")
            with suppress(OSError):  # of a full disk, which the build reports where it matters
                write_struct(described, _Owner(str(project.root), os.getpid(), now))
        yield waited
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):
                described.unlink()
        lock.release()


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that no cell keeps running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    # None is a handler that was not set from Python, so it cannot be set again.
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
