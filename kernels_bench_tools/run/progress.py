"""How a build reports what it does while it runs."""

from __future__ import annotations

import threading
from typing import Any

from kernels_bench_tools.schema.build import CellRun


class Progress:
    """Receives each step of a build; this class ignores them all.

    The methods are called from several threads, but never from two at the same time. Cells are named
    ``layer_norm/impls/mine.md:benchmark``.
    """

    def environment_started(self, name: str) -> None:
        """The environment of a cell is being made."""

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None:
        """The environment of a cell is ready, or cannot be made."""

    def cell_started(self, name: str) -> None:
        """A cell that does not measure is about to run."""

    def process_started(self, name: str, process: int, processes: int) -> None:
        """One of a measuring cell's processes, counted from 0, is about to start."""

    def process_ended(self, name: str) -> None:
        """That process has ended; others of the cell may follow, after those of other cells."""

    def cell_output(self, name: str, line: str) -> None:
        """A cell has printed a line, on either stream."""

    def cell_finished(self, name: str, run: CellRun) -> None:
        """A cell has a result: it ran, was served from the cache (``run.cached``), or is unsupported."""

    def note(self, text: str) -> None:
        """Something else to show to the user, such as what the build waits for."""


def _serialized(name: str) -> Any:
    def call(self: SerializedProgress, *arguments: Any) -> None:
        with self.lock:
            getattr(self.progress, name)(*arguments)

    return call


class SerializedProgress(Progress):
    """Passes each step on to another progress, one at a time."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.lock = threading.RLock()

    environment_started = _serialized("environment_started")
    environment_finished = _serialized("environment_finished")
    cell_started = _serialized("cell_started")
    process_started = _serialized("process_started")
    process_ended = _serialized("process_ended")
    cell_output = _serialized("cell_output")
    cell_finished = _serialized("cell_finished")
    note = _serialized("note")
