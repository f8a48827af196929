"""Rendered files of the site: rendered only if their key changed, in several processes where there are many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_MIN_FOR_PROCESSES = 48
"""Below this number of files, starting processes takes longer than it saves."""
_CHUNK = 8
_MAX_PROCESSES = 8
_PR_SET_PDEATHSIG = 1
"""Option of Linux's ``prctl``."""


@dataclass(frozen=True)
class RenderedFile:
    """A file of the site that takes work to make."""

    key: str
    """Digest of everything that it is made from."""
    render: Callable[[], bytes]


class Written(NamedTuple):
    """A file that was rendered and written."""

    path: str
    size: int
    changed: bool
    """Whether its bytes differ from those of the file that was there."""
    dead_links: list[str]
    """Links in its prose whose target does not exist."""


@dataclass(frozen=True)
class _Job:
    """What the worker processes inherit by fork: render functions hold the whole site and cannot be pickled."""

    files: Mapping[str, RenderedFile]
    write: Callable[[str, bytes], bool]
    dead_links: set[str]

    def run(self, path: str) -> Written:
        self.dead_links.clear()
        data = self.files[path].render()
        changed = self.write(path, data)
        return Written(path, len(data), changed, sorted(self.dead_links))


_job: _Job | None = None


def render_files(
    files: Mapping[str, RenderedFile], write: Callable[[str, bytes], bool], dead_links: set[str]
) -> Iterator[Written]:
    """Render and write files, in several processes where there are many of them.

    Args:
        files: By site path.
        write: Writes the bytes of a site path, and returns whether the file changed.
        dead_links: Set that rendering adds dead links to.
    """
    job = _Job(files, write, dead_links)
    processes = _process_count(len(files))
    yield from map(job.run, files) if processes < 2 else _in_processes(job, processes)


def _in_processes(job: _Job, processes: int) -> Iterator[Written]:
    import multiprocessing
    import warnings
    from concurrent.futures import ProcessPoolExecutor

    global _job
    _job = job
    try:
        with warnings.catch_warnings():
            # Python warns about native threads, such as those of numpy's BLAS; rendering does not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(processes, context, _exit_with_parent, (os.getpid(),)) as pool:
                yield from pool.map(_run_inherited, job.files, chunksize=_CHUNK)
    finally:
        _job = None


def _run_inherited(path: str) -> Written:
    assert _job is not None
    return _job.run(path)


def _exit_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent is killed: it would wait for work forever."""
    import ctypes
    import signal

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux
        return
    if os.getppid() != parent:  # it was killed before the call
        os._exit(1)


def _process_count(files: int) -> int:
    """Return how many processes to use; 1 where forking is not safe."""
    # A lock that another thread holds during the fork is never released in the child.
    if files < _MIN_FOR_PROCESSES or threading.active_count() > 1 or not hasattr(os, "sched_getaffinity"):
        return 1
    return min(len(os.sched_getaffinity(0)), files // _CHUNK, _MAX_PROCESSES)
