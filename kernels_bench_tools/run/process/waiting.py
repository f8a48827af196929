"""Waits of the main thread, which looks up now and then.

A signal to a process may be given to any of its threads. Python then calls its handler in the main thread, but does not
wake that up: Ctrl-C would have no effect until the wait is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

LOOK_SECONDS = 0.25


def first_ended(futures: Iterable[Future[Any]]) -> set[Future[Any]]:
    """Wait until one has ended at least; return those that have."""
    waited_for = set(futures)
    while True:
        ended, _ = wait(waited_for, LOOK_SECONDS, FIRST_COMPLETED)
        if ended:
            return ended


def all_ended(futures: Iterable[Future[Any]]) -> None:
    """Wait until every one has ended."""
    waited_for = set(futures)
    while wait(waited_for, LOOK_SECONDS).not_done:
        pass
