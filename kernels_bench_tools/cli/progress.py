"""Progress on stderr: live on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from kernels_bench_tools.notebooks.progress import Progress
from kernels_bench_tools.records import Status
from kernels_bench_tools.runs import CellRun

_MARKS = {Status.OK: "✓", Status.UNSUPPORTED: "–"}


def make_progress() -> PlainProgress:
    """Return what suits stderr: a live display on a terminal, else one line per event."""
    console = Console(stderr=True)
    return LiveProgress(console) if console.is_terminal else PlainProgress()


def describe(name: str, run: CellRun) -> str:
    """Return one line that says how a cell ended."""
    assert run.status is not None
    mark = _MARKS.get(run.status, "✗")
    how = "cached" if run.cached else f"{run.seconds:.1f} s"
    if run.status is Status.OK:
        return f"{mark} {name}  {how}"
    if run.status is Status.UNSUPPORTED and run.exit_code is None:
        return f"{mark} {name}  unsupported: {run.reason}"
    return f"{mark} {name}  {run.status.value} after {run.seconds:.1f} s: {run.reason}"


def running(process: int, processes: int) -> str:
    """Return in words that a process, counted from 0, of a measuring cell runs."""
    return "running" if processes == 1 else f"running, process {process + 1} of {processes}"


class PlainProgress(Progress):
    """One line per event, for logs and pipes."""

    def __enter__(self) -> PlainProgress:
        """Start showing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing."""

    def write(self, line: str) -> None:
        """Show one line for good."""
        print(line, file=sys.stderr, flush=True)

    def environment_started(self, name: str) -> None:
        """Say that the packages of a cell are being resolved and installed."""
        self.write(f"  {name}  preparing its environment")

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None:
        """Say how that ended."""
        self.write(f"  {name}  environment {'ready' if ok else 'failed'} after {seconds:.1f} s")

    def cell_started(self, name: str) -> None:
        """Say that a cell runs now."""
        self.write(f"  {name}  running")

    def process_started(self, name: str, process: int, processes: int) -> None:
        """Say that one of a measuring cell's processes runs now."""
        self.write(f"  {name}  {running(process, processes)}")

    def cell_finished(self, name: str, run: CellRun) -> None:
        """Say how a cell ended; one that was served from the cache says nothing new."""
        if not (run.cached and run.status is Status.OK):
            self.write(describe(name, run))

    def note(self, text: str) -> None:
        """Say something that belongs to no cell."""
        self.write(text)


class LiveProgress(PlainProgress):
    """What is going on at the moment, with the time it has taken, below what has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._active: dict[str, tuple[str, float]] = {}
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveProgress:
        """Start the display."""
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the display and leave the lines above it."""
        self._live.stop()

    def write(self, line: str) -> None:
        """Show one line for good, above the display."""
        self._console.print(line, markup=False, highlight=False)

    def environment_started(self, name: str) -> None:
        """Show that the packages of a cell are being resolved and installed."""
        self._active[name] = ("preparing its environment", time.monotonic())

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None:
        """Take that off the display; a failure stays as a line."""
        self._active.pop(name, None)
        if not ok:
            super().environment_finished(name, seconds, ok)

    def cell_started(self, name: str) -> None:
        """Show that a cell runs now."""
        self._active[name] = ("running", time.monotonic())

    def process_started(self, name: str, process: int, processes: int) -> None:
        """Show that one of a measuring cell's processes runs now."""
        self._active[name] = (running(process, processes), time.monotonic())

    def process_ended(self, name: str) -> None:
        """Take it off the display: the next one waits for those of other cells."""
        self._active.pop(name, None)

    def cell_finished(self, name: str, run: CellRun) -> None:
        """Replace the cell on the display by a line that says how it ended."""
        self._active.pop(name, None)
        super().cell_finished(name, run)

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        now = time.monotonic()
        # A copy, because other threads start and finish cells while this one draws.
        for name, (activity, since) in list(self._active.items()):
            table.add_row(Spinner("dots"), name, activity, f"{now - since:.0f} s")
        return table
