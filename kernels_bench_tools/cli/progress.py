"""Progress on stderr: a live display on a terminal, else one line per event."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.schema.build import CellRun
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

# Variables that make rich treat a pipe as a terminal.
_FORCED = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}


def make_progress() -> PlainProgress:
    """Return a live display if stderr is a terminal, else one that prints lines."""
    if not sys.stderr.isatty() and not _FORCED.intersection(os.environ):
        return PlainProgress()  # without rich, whose import takes longer than reading fifty notebooks
    from rich.console import Console

    console = Console(stderr=True)
    return _LiveProgress(console) if console.is_terminal else PlainProgress()


class PlainProgress(Progress):
    """One line per event, for logs and pipes."""

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, line: str) -> None:
        """Print one line."""
        print(visible(line), file=sys.stderr, flush=True)

    def show(self, name: str, activity: str) -> None:
        """Show what a cell does now."""
        self.write(f"  {name}  {activity}")

    def environment_started(self, name: str) -> None:
        """Show that a cell's packages are being resolved and installed."""
        self.show(name, "preparing its environment")

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None:
        """Print how that ended."""
        self.write(f"  {name}  environment {'ready' if ok else 'failed'} after {seconds:.1f} s")

    def cell_started(self, name: str) -> None:
        """Show that a cell runs now."""
        self.show(name, "running")

    def process_started(self, name: str, process: int, processes: int) -> None:
        """Show that a process of a measuring cell runs now."""
        self.show(name, "running" if processes == 1 else f"running, process {process + 1} of {processes}")

    def cell_finished(self, name: str, run: CellRun) -> None:
        """Print how a cell ended, unless it was unchanged and correct."""
        if not (run.cached and run.status is Status.OK):
            self.write(_describe(name, run))

    def note(self, text: str) -> None:
        """Print a text that belongs to no cell."""
        self.write(text)


class _LiveProgress(PlainProgress):
    """The running cells with their elapsed times, below the lines of finished ones."""

    def __init__(self, console: Console) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        self._live = Progress(*columns, console=console, transient=True)
        self._active: dict[str, TaskID] = {}

    def __enter__(self) -> _LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def write(self, line: str) -> None:
        self._live.console.print(visible(line), markup=False, highlight=False)

    def show(self, name: str, activity: str) -> None:
        self.process_ended(name)
        self._active[name] = self._live.add_task(visible(f"{name} {activity}"), total=None)

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None:
        self.process_ended(name)
        if not ok:
            super().environment_finished(name, seconds, ok)

    def process_ended(self, name: str) -> None:
        # Processes of other cells run before the next one of this cell.
        if name in self._active:
            self._live.remove_task(self._active.pop(name))

    def cell_finished(self, name: str, run: CellRun) -> None:
        self.process_ended(name)
        super().cell_finished(name, run)


def _describe(name: str, run: CellRun) -> str:
    """Return one line on how a cell ended."""
    assert run.status is not None
    time = "cached" if run.cached else f"{run.seconds:.1f} s" if run.exit_code is not None else ""
    details = ", ".join(filter(None, (time, run.counts)))
    if run.status is Status.OK:
        return f"✓ {name}  {details}"
    mark = "✗" if run.status.failed and not run.expected else "–"
    expected = " as expected" if run.expected else ""
    return f"{mark} {name}  {run.status.label}{expected}{f', {details}' if details else ''}: {run.reason}"
