"""Progress on a terminal: what is going on at the moment, below what has ended."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from kernels_bench_tools.cli.progress import PlainProgress, running
from kernels_bench_tools.schema.build import CellRun


def stderr_console() -> Console:
    """Return rich's view of stderr."""
    return Console(stderr=True)


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
