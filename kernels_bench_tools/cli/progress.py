"""Progress on stderr: live on a terminal, plain lines in a log."""

from __future__ import annotations

import os
import sys

from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.schema.build import CellRun
from kernels_bench_tools.schema.record import Status

# What makes rich take a pipe for a terminal.
_FORCED = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
_MARKS = {Status.OK: "✓", Status.UNSUPPORTED: "–"}


def make_progress() -> PlainProgress:
    """Return what suits stderr: a live display on a terminal, else one line per event."""
    if not sys.stderr.isatty() and not _FORCED.intersection(os.environ):
        return PlainProgress()  # without rich, whose import takes longer than reading fifty notebooks
    from kernels_bench_tools.cli.display import LiveProgress, stderr_console

    console = stderr_console()
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
