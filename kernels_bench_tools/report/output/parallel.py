"""Rendered files of the site: rendered only if their key changed, in several processes where there are many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """A file of the site that is rendered."""

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


_render: Callable[[str], Written]
"""What a worker process inherits by fork: it refers to the whole site and cannot be pickled."""


def render_files(
    files: Mapping[str, RenderedFile], write: Callable[[str, bytes], bool], dead_links: set[str]
) -> Iterator[Written]:
    """Render and write files, in several processes where there are many of them.

    ``write`` writes the bytes of a site path, and returns whether the file changed. Rendering adds to ``dead_links``.
    """

    def render(path: str) -> Written:
        dead_links.clear()
        data = files[path].render()
        return Written(path, len(data), write(path, data), sorted(dead_links))

    processes = _process_count(len(files))
    yield from map(render, files) if processes < 2 else _in_processes(render, files, processes)


def _in_processes(
    render: Callable[[str], Written], paths: Iterable[str], processes: int
) -> Iterator[Written]:
    import multiprocessing
    import warnings
    from concurrent.futures import ProcessPoolExecutor

    with warnings.catch_warnings():
        # Python warns about native threads, such as those of numpy's BLAS; rendering does not use them.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, context, _start_worker, (os.getpid(), render)) as pool:
            yield from pool.map(_render_inherited, paths, chunksize=_CHUNK)


def _render_inherited(path: str) -> Written:
    return _render(path)


def _start_worker(parent: int, render: Callable[[str], Written]) -> None:
    """Have Linux kill this process when its parent is killed: it would wait for work forever."""
    global _render
    _render = render
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
