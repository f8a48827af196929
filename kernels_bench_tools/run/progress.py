"""How a build reports what it does while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kernels_bench_tools.records.build import CellRun


class Progress:
    """Receives each step of a build; this class ignores them all.

    The methods are called from several threads, but never from two at the same time. Cells are named
    ``layer_norm/impls/mine.md:benchmark``.
    """

    def build_started(self, expected: Mapping[str, float]) -> None:
        """The cells that may have to run are known, each with the seconds that it is expected to take."""

    def environment_started(self, name: str) -> None: ...

    def downloading(self, package: str) -> None:
        """A package is being downloaded; the name includes its size."""

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None: ...

    def cell_started(self, name: str) -> None:
        """A cell that does not measure is about to run."""

    def process_started(self, name: str, process: int, processes: int) -> None:
        """One of a measuring cell's processes, counted from 0, is about to start."""

    def process_ended(self, name: str, waits: bool) -> None:
        """That process has ended; if it ``waits``, others of its session follow before the cell has a result."""

    def cell_output(self, name: str, line: str) -> None: ...

    def cell_finished(self, name: str, run: CellRun) -> None:
        """A cell has a result: it ran, was served from the cache (``run.cached``), or is unsupported."""

    def note(self, text: str) -> None:
        """Something else to show to the user, such as what the build waits for."""


class ForwardedProgress(Progress):
    """Passes the name and the arguments of each step to a function, one step at a time."""

    def __init__(self, receive: Callable[..., None]) -> None:
        lock = threading.RLock()

        def forward(step: str, *arguments: Any) -> None:
            with lock:
                receive(step, *arguments)

        for step in (name for name in vars(Progress) if not name.startswith("_")):
            setattr(self, step, partial(forward, step))


def serialize(progress: Progress) -> Progress:
    """Return a progress that passes each step on to another one, one at a time."""
    return ForwardedProgress(lambda step, *arguments: getattr(progress, step)(*arguments))
