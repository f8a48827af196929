"""What may run at the same time on one worker: several cells that do not measure, or one session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernels_bench_tools.run.process.run import InterruptedBuildError

_LOOK_SECONDS = 0.1


class Gate:
    """Keeps a session alone; safe to share between threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._session = ""
        self._inside = 0

    @contextmanager
    def held(self, session: str, stopped: Callable[[], bool]) -> Iterator[None]:
        """Let nothing in but jobs of this session, once those that are inside have ended.

        Raises:
            InterruptedBuildError: ``stopped`` said so while waiting.
        """
        with self._changed:
            self._wait(lambda: not self._session, stopped)
            self._session = session
        try:
            with self._changed:
                self._wait(lambda: not self._inside, stopped)
            yield
        finally:
            with self._changed:
                self._session = ""
                self._changed.notify_all()

    @contextmanager
    def entered(self, session: str) -> Iterator[bool]:
        """Let a job in, and yield True; or False if it may not run now."""
        with self._changed:
            allowed = session == self._session
            self._inside += allowed and not session
        try:
            yield allowed
        finally:
            with self._changed:
                self._inside -= allowed and not session
                self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        """Wait for a condition, with the lock held before and after."""
        while not condition():
            self._changed.wait(_LOOK_SECONDS)
            if stopped():
                raise InterruptedBuildError
