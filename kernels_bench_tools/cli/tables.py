"""Tables of ``kbt run`` and ``kbt list``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Verdict
from kernels_bench_tools.results.metrics import speedup_with_interval
from kernels_bench_tools.text import interval, milliseconds, plural, visible

if TYPE_CHECKING:  # it imports numpy, which lists do not need
    from kernels_bench_tools.results.rows import Comparison

_VERDICT_WIDTH = len("1 process: no verdict")
"""Characters of a narrow column of verdicts, which is wrapped at spaces."""
_NAME_WIDTH = 16
"""Characters of a narrow column of workloads, whose names are wrapped at underscores."""


def table_console(width: int) -> Console:
    """Return a console for tables, which have ``width`` columns where stdout is not a terminal."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=width)


class _Table(Table):
    """A table that shows control characters in its cells as escapes."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        super().add_row(*map(_visible_cell, cells), **options)


def _visible_cell(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text) and visible(cell.plain) != cell.plain:
        return Text(visible(cell.plain), style=cell.style)
    return visible(cell) if isinstance(cell, str) else cell


def new_table(title: str | None = None) -> Table:
    """Return a table without borders."""
    return _Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")


def count_processes(records: Iterable[Record]) -> int:
    """Return in how many processes the records were measured."""
    return len({record.process for record in records if record.outcome.ran})


def processes_suffix(records: Iterable[Record]) -> str:
    """Return the number of processes as the end of a title; empty if nothing was measured."""
    count = count_processes(records)
    return f", {plural(count, 'process', 'es')}" if count else ""


def comparison_table(rows: Sequence[Comparison], baseline: str, width: int) -> Table:
    """Return a table with a row for each workload, with as many columns as ``width`` characters have room for."""
    most = max((row.processes for row in rows if row.p50_ms is not None), default=1)
    for more in (2, 1, 0):
        columns = _columns(rows, baseline, more)
        # A title is wrapped at spaces, but not in brackets.
        words = [re.findall(r"\[.*\]|\S+", title) for title in columns]
        widths = [max(map(len, (*own, *texts))) for own, texts in zip(words, columns.values(), strict=True)]
        room = width - sum(size + 2 for size in widths)
        if room >= _VERDICT_WIDTH:
            break
    if room < _VERDICT_WIDTH:
        widths[0] = max(widths[0] - (_VERDICT_WIDTH - room), _NAME_WIDTH)
        columns["workload"] = [fold_name(name, widths[0]) for name in columns["workload"]]
    verdicts = [_verdict(row, most) for row in rows]
    longest = max(map(len, verdicts), default=0)
    for number, title in enumerate(columns):
        more = max(len(title) - widths[number], 0)
        if room - more >= longest:
            widths[number], room = widths[number] + more, room - more
    table = new_table()
    for number, (title, size) in enumerate(zip(columns, widths, strict=True)):
        title = title if len(title) <= size else title.replace(" [", "\n[")
        table.add_column(title, justify="right" if number else "left", width=size, overflow="fold")
    # The only column that may be long, so the one whose texts are wrapped.
    table.add_column("verdict", width=max(room, _VERDICT_WIDTH), overflow="fold")
    for verdict, texts in zip(verdicts, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*map(Text, texts), Text(verdict))
    return table


def fold_name(name: str, width: int) -> str:
    """Return a name with a line break after the last underscore that fits, if it is longer than ``width``."""
    fitting = name[:width].rpartition("_")[0]
    if len(name) <= width or not fitting:
        return name
    return f"{fitting}_\n{fold_name(name[len(fitting) + 1 :], width)}"


def _columns(rows: Sequence[Comparison], baseline: str, more: int) -> dict[str, list[str]]:
    """Return the columns before the verdict: with 1 ``more`` they have intervals, with 2 also the baseline's times."""
    columns = {"workload": [row.workload or "every workload" for row in rows]}
    if not more:
        columns["median ms"] = [milliseconds(row.p50_ms) for row in rows]
        columns["speed-up"] = [speedup_with_interval(row.speedup, None, None) for row in rows]
        return columns | _host_times(rows)
    columns["median ms [95 %]"] = [_median(row) for row in rows]
    if more > 1:
        columns[f"{baseline or 'baseline'} ms"] = [milliseconds(row.baseline_ms) for row in rows]
    columns["speed-up [95 %]"] = [
        speedup_with_interval(row.speedup, row.speedup_low, row.speedup_high) for row in rows
    ]
    return columns | _host_times(rows)


def _host_times(rows: Sequence[Comparison]) -> dict[str, list[str]]:
    """Return the columns of the host's times; none where they were not measured, as on a CPU."""
    columns = {"submit ms": [row.host_submit_ms for row in rows], "e2e ms": [row.e2e_ms for row in rows]}
    return {title: [*map(milliseconds, times)] for title, times in columns.items() if any(times)}


def _verdict(row: Comparison, most: int) -> str:
    text = row.verdict.value if row.status is Status.OK else f"{row.status.label}: {row.reason}"
    if row.status is Status.OK and row.verdict is Verdict.FEW_PROCESSES:
        few = row.processes < FEWEST_PROCESSES
        text = f"{plural(row.processes, 'process', 'es') if few else 'baseline in too few processes'}: {text}"
    elif row.status is Status.OK and row.baseline_status not in {Status.OK, Status.ABSENT}:
        text = f"{text}; baseline: {row.baseline_status.label}"
    notes = [flag.label for flag in row.flags if flag.label not in text]
    if row.limitation:
        notes.append(row.limitation)
    if row.p50_ms is not None and row.processes < most:
        notes.append(f"{row.processes} of {most} processes")
    return f"{text} ({', '.join(notes)})" if notes else text


def _median(row: Comparison) -> str:
    bounds = interval(row.ci_low_ms, row.ci_high_ms, row.p50_ms)
    return f"{milliseconds(row.p50_ms)} {bounds}".rstrip()
