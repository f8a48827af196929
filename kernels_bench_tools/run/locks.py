"""What keeps builds out of one another's way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.environment.base import ignore_folder
from kernels_bench_tools.run.environment.variables import user_cache
from kernels_bench_tools.run.process.run import InterruptedBuildError
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.text import slugify

_LOOK_SECONDS = 0.25


def _never() -> bool:
    return False


@contextmanager
def project_lock(project: Project, progress: Progress) -> Iterator[bool]:
    """Let one build at a time change a project's state; yield whether there was another to wait for.

    Who holds it may take it again, so that a build and its publication are one step for all others: another
    build would replace results, or remove them from the cache, while pages are being made of them.
    """
    ignore_folder(project.state)
    waiting = f"another build is running in {project.root}; waiting for it to end"
    with _held(project.state / "lock", waiting, progress) as waited:
        yield waited


@contextmanager
def device_lock(slug: str, progress: Progress, stopped: Callable[[], bool] = _never) -> Iterator[None]:
    """Let one cell at a time measure on a device, among all of this user's builds.

    ``CUDA_VISIBLE_DEVICES`` tells cards of one machine apart: builds on different ones do not wait.

    Raises:
        InterruptedBuildError: ``stopped`` said so while waiting.
    """
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    path = user_cache() / "locks" / f"{slugify(f'{slug} {card}')}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = f"another build is measuring on {slug}; waiting until the device is free"
    with _held(path, waiting, progress, stopped):
        yield


@contextmanager
def _held(
    path: Path, waiting: str, progress: Progress, stopped: Callable[[], bool] = _never
) -> Iterator[bool]:
    lock = FileLock(path, is_singleton=True)
    waited = False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waited = True
        progress.note(waiting)
        _acquire(lock, stopped)
    try:
        yield waited
    finally:
        lock.release()


def _acquire(lock: FileLock, stopped: Callable[[], bool]) -> None:
    """Wait for a lock, in a thread that no signal wakes up."""
    while True:
        if stopped():
            raise InterruptedBuildError
        try:
            lock.acquire(timeout=_LOOK_SECONDS)
        except Timeout:
            continue
        return


@contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """Treat a request to end, or a lost terminal, as Ctrl-C, so that no cell is left running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    # None is a handler that was not set from Python; there is nothing to put back then.
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
