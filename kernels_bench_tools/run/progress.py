"""How a build tells what it does while it does it."""

from __future__ import annotations

import threading
from typing import Protocol

from kernels_bench_tools.schema.build import CellRun


class Progress(Protocol):
    """Told of each step; from several threads, but never from two at the same time.

    Cells are named ``layer_norm/impls/mine.md:benchmark``.
    """

    def environment_started(self, cell_name: str) -> None:
        """The environment of a cell is being made."""
        ...

    def environment_finished(self, cell_name: str, seconds: float, ok: bool) -> None:
        """The environment of a cell is ready, or cannot be made."""
        ...

    def cell_started(self, name: str) -> None:
        """A cell is about to run. One that measures is told of by ``process_started`` instead."""
        ...

    def process_started(self, name: str, process: int, processes: int) -> None:  # noqa: ARG002
        """One of a measuring cell's processes, counted from 0, is about to start; not shown by default."""
        return

    def process_ended(self, name: str) -> None:  # noqa: ARG002
        """That process has ended; others of the cell may follow, after those of other cells."""
        return

    def cell_output(self, name: str, line: str) -> None:  # noqa: ARG002
        """A cell has printed a line, on either stream; not shown unless this is overridden."""
        return

    def cell_finished(self, name: str, run: CellRun) -> None:
        """A cell has a result: it ran, was served from the cache (``run.cached``), or cannot run here."""
        ...

    def note(self, text: str) -> None:
        """Something else that a user would want to know, such as what is being waited for."""
        ...


class Silent:
    """Tells nobody."""

    def environment_started(self, cell_name: str) -> None:
        """Ignore it."""

    def environment_finished(self, cell_name: str, seconds: float, ok: bool) -> None:
        """Ignore it."""

    def cell_started(self, name: str) -> None:
        """Ignore it."""

    def process_started(self, name: str, process: int, processes: int) -> None:
        """Ignore it."""

    def process_ended(self, name: str) -> None:
        """Ignore it."""

    def cell_output(self, name: str, line: str) -> None:
        """Ignore it."""

    def cell_finished(self, name: str, run: CellRun) -> None:
        """Ignore it."""

    def note(self, text: str) -> None:
        """Ignore it."""


class OneAtATime:
    """Passes on to another progress, from one thread at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.RLock()

    def environment_started(self, cell_name: str) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.environment_started(cell_name)

    def environment_finished(self, cell_name: str, seconds: float, ok: bool) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.environment_finished(cell_name, seconds, ok)

    def cell_started(self, name: str) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.cell_started(name)

    def process_started(self, name: str, process: int, processes: int) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.process_started(name, process, processes)

    def process_ended(self, name: str) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.process_ended(name)

    def cell_output(self, name: str, line: str) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.cell_output(name, line)

    def cell_finished(self, name: str, run: CellRun) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.cell_finished(name, run)

    def note(self, text: str) -> None:
        """Pass it on."""
        with self._lock:
            self._progress.note(text)
