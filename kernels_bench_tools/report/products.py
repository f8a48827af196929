"""Files of the site that take work to make: each with a key for all that it is made from, made only if that changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_ENOUGH = 48
"""Products that are worth starting processes for."""
_AT_ONCE = 8
_MOST_WORKERS = 8
_PR_SET_PDEATHSIG = 1
"""Of Linux's ``prctl``."""


@dataclass(frozen=True)
class Product:
    """A file in the making."""

    key: str
    """The same key, the same bytes."""
    make: Callable[[], bytes]


class Made(NamedTuple):
    """A product that was made and put into its place."""

    path: str
    size: int
    changed: bool
    """Whether the file did not hold these bytes already."""
    dead: list[str]
    """Links of its prose that lead nowhere."""


Put = Callable[[str, bytes], bool]
"""Puts bytes into the place of a site path; returns whether anything changed."""


@dataclass(frozen=True)
class _Work:
    """What the processes inherit: products cannot be sent to them, for they hold the whole site."""

    products: Mapping[str, Product]
    put: Put
    dead: set[str]


_work: _Work | None = None


def make_products(products: Mapping[str, Product], put: Put, dead: set[str]) -> Iterator[Made]:
    """Make products and put them into their places, in several processes where there are many of them.

    Args:
        products: By site path.
        put: Where the bytes go.
        dead: Making a product adds the links that lead nowhere to this set.
    """
    workers = _workers(len(products))
    work = _Work(products, put, dead)
    if workers < 2:
        for path in products:
            yield _make(work, path)
        return
    yield from _in_processes(work, workers)


def _in_processes(work: _Work, workers: int) -> Iterator[Made]:
    import multiprocessing
    import warnings
    from concurrent.futures import ProcessPoolExecutor

    global _work
    paths = list(work.products)
    chunks = [paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)]
    _work = work
    try:
        with (
            warnings.catch_warnings(),
            ProcessPoolExecutor(
                workers, multiprocessing.get_context("fork"), _end_with_parent, (os.getpid(),)
            ) as pool,
        ):
            # Python warns of native threads, such as those of numpy's BLAS: rendering does not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            for found in pool.map(_make_chunk, chunks):
                yield from found
    finally:
        _work = None


def _end_with_parent(parent: int) -> None:
    """Have this process killed when the one that made it is: it would wait for work for ever, and hold its locks."""
    import ctypes
    import signal

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux
        return
    if os.getppid() != parent:  # it was killed just before
        os._exit(1)


def _make_chunk(paths: Sequence[str]) -> list[Made]:
    assert _work is not None
    return [_make(_work, path) for path in paths]


def _make(work: _Work, path: str) -> Made:
    work.dead.clear()
    data = work.products[path].make()
    changed = work.put(path, data)
    return Made(path, len(data), changed, sorted(work.dead))


def _workers(count: int) -> int:
    """Return how many processes are worth it; 1 where a copy of this one might not work."""
    # What another thread holds at the moment of the fork, a child would wait for forever.
    if count < _ENOUGH or threading.active_count() > 1 or not hasattr(os, "sched_getaffinity"):
        return 1
    return min(len(os.sched_getaffinity(0)), count // _AT_ONCE, _MOST_WORKERS)
