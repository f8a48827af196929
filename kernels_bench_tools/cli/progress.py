"""Progress on stderr, one line per event."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Mapping

from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.words import abbreviated, plural

_TELL_SECONDS = 30.0
"""The shortest time between two lines with the time that is left."""
_SHORT_SECONDS = 15.0
"""A shorter time is not announced."""
_FIGURE = re.compile(r"\S+ {2,}[\d.e+-]+ ms\b")
"""Workload and median, at the start of a line that a measuring cell prints."""
_REPRESENTATIVE_SECONDS = 20.0
"""So much of the expected time must be over before it corrects the rest."""


class PlainProgress(Progress):
    def __init__(self, figures_of: Collection[str] = ()) -> None:
        self._figures_of = figures_of
        self._unsupported: dict[str, set[str]] = {}
        """Notebooks by why they cannot run here, until they are counted."""
        self._expected: dict[str, float] = {}
        self._left: dict[str, float] = {}
        """Seconds that cells without a result are expected to take."""
        self._left_after: dict[str, float] = {}
        """The same for when the process ends that runs now."""
        self._running: dict[str, str] = {}
        """The last process of each cell."""
        self._numbers: dict[str, int] = {}
        """The numbers of cells in the order in which they started."""
        self._start()

    def build_started(self, expected: Mapping[str, float]) -> None:
        """Print how many notebooks cannot run, how many cells may run, and how long that takes."""
        for reason, notebooks in self._unsupported.items():
            needs = reason.removeprefix("needs ")
            verb = "cannot run here:" if needs == reason else "needs" if len(notebooks) == 1 else "need"
            self.note(
                f"{plural(len(notebooks), 'notebook')} {verb} {needs} ({abbreviated(sorted(notebooks))})"
            )
        self._unsupported.clear()
        self._expected = {**expected}
        self._left = {**expected}
        self._start()
        if expected:
            left = self.time_left()
            self.note(f"{plural(len(expected), 'cell')} to run{f', {left}' if left else ''}")

    def _start(self) -> None:
        self._started = self._told = time.monotonic()
        self._left_at_start = sum(self._left.values())

    def time_left(self) -> str:
        """Return the time that is left, in words; empty if it is not known or a few seconds."""
        left = sum(self._left.values())
        elapsed, done = time.monotonic() - self._started, self._left_at_start - left
        if done >= _REPRESENTATIVE_SECONDS:
            left *= elapsed / done  # includes what was not expected: a slower machine, pages
        if left < _SHORT_SECONDS:
            return ""
        return f"about {f'{round(left, -1):.0f} s' if left < 95 else f'{left / 60:.0f} min'} left"

    def environment_started(self, name: str) -> None:
        self.note(f"  {name}  preparing its environment")

    def downloading(self, package: str) -> None:
        self.note(f"  downloading {package}")

    def environment_finished(self, name: str, seconds: float, ok: bool) -> None:
        self.note(f"  {name}  environment {'ready' if ok else 'failed'} after {seconds:.1f} s")

    def cell_started(self, name: str) -> None:
        self.note(f"  {self._number(name)}{name}  running")

    def process_started(self, name: str, process: int, processes: int) -> None:
        if not self._running:
            self._start()  # environments and first pages say nothing about how long processes take
        if time.monotonic() - self._told >= _TELL_SECONDS and (left := self.time_left()):
            self._told = time.monotonic()
            self.note(left)
        self._left_after[name] = self._expected.get(name, 0.0) * (processes - process - 1) / processes
        self._running[name] = f"process {process + 1} of {processes}"
        activity = "running" if processes == 1 else f"running, {self._running[name]}"
        self.note(f"  {self._number(name)}{name}  {activity}")

    def process_ended(self, name: str, waits: bool) -> None:
        self._left[name] = self._left_after.get(name, 0.0)
        if waits and len(self._expected) != 1:  # an only cell waits for its own next process
            ended = f"{self._running[name]} ended, waiting for other cells"
            self.note(f"  {self._number(name)}{name}  {ended}")

    def cell_output(self, name: str, line: str) -> None:
        first = self._running.get(name, "").startswith("process 1 ")
        shown = first and name.rpartition(":")[0] in self._figures_of
        if shown and (figure := _FIGURE.match(line)):
            self.note(f"  {figure[0]}")

    def cell_finished(self, name: str, run: CellRun) -> None:
        """Print how a cell ended, unless it was unchanged and correct, or cannot run here."""
        self._left.pop(name, None)
        if run.status is Status.UNSUPPORTED and run.exit_code is None:
            reason = run.reason.partition(";")[0]
            self._unsupported.setdefault(reason, set()).add(name.rpartition(":")[0])
        elif not (run.cached and run.status is Status.OK):
            self.note(_describe(name, run))

    def note(self, text: str) -> None:
        print(visible(text), file=sys.stderr, flush=True)

    def _number(self, name: str) -> str:
        """Return the number of a cell among those that may run, such as ``[3/39] ``."""
        number = self._numbers.setdefault(name, len(self._numbers) + 1)
        return f"[{number}/{len(self._expected)}] " if self._expected else ""


def _describe(name: str, run: CellRun) -> str:
    assert run.status is not None
    time = "cached" if run.cached else f"{run.seconds:.1f} s" if run.exit_code is not None else ""
    details = ", ".join(filter(None, (time, run.counts)))
    if run.status is Status.OK:
        return f"✓ {name}  {details}"
    mark = "✗" if run.status.failed and not run.expected else "–"
    expected = " as expected" if run.expected else ""
    return f"{mark} {name}  {run.status.label}{expected}{f', {details}' if details else ''}: {run.reason}"
