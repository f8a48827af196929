"""Tables of ``kbt run`` and ``kbt list``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kernels_bench_tools.cli.output import plural
from kernels_bench_tools.schema.record import Record, Status
from kernels_bench_tools.schema.summary import FEWEST_PROCESSES, Verdict
from kernels_bench_tools.summarize.metrics import speedup_with_interval
from kernels_bench_tools.summarize.rows import Comparison
from kernels_bench_tools.text import interval, milliseconds, visible

_VERDICT_WIDTH = 16
"""Characters of a narrow column of verdicts, which is wrapped at spaces."""


def table_console(width: int) -> Console:
    """Return a console for tables, which have ``width`` columns where stdout is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


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


def comparison_table(rows: Sequence[Comparison], baseline: str, console: Console) -> Table:
    """Return a table with a row for each workload, with as many columns as the console has room for."""
    made = [_comparison_table(rows, baseline, more) for more in (2, 1, 0)]
    fits = (table for table in made if console.measure(table).minimum <= console.width)
    return next(fits, made[-1])


def _comparison_table(rows: Sequence[Comparison], baseline: str, more: int) -> Table:
    """Return the table; with 1 ``more`` it has intervals, with 2 also the baseline's times."""
    most = max((row.processes for row in rows if row.p50_ms is not None), default=1)
    table = new_table()
    table.add_column("workload", no_wrap=True)
    table.add_column("median ms [95 %]" if more else "median ms", justify="right", no_wrap=True)
    if more > 1:
        table.add_column(f"{baseline or 'baseline'} ms", justify="right")
    table.add_column("speed-up [95 %]" if more else "speed-up", justify="right", no_wrap=True)
    # The only column that may be long, so the one that is folded.
    table.add_column("verdict", ratio=1, min_width=_VERDICT_WIDTH)
    for row in rows:
        interval_of = (row.speedup_low, row.speedup_high) if more else (None, None)
        table.add_row(
            row.workload or "every workload",
            _median(row) if more else milliseconds(row.p50_ms),
            *([milliseconds(row.baseline_ms)] if more > 1 else []),
            Text(speedup_with_interval(row.speedup, *interval_of)),
            Text(_verdict(row, most)),
        )
    return table


def _verdict(row: Comparison, most: int) -> str:
    text = row.verdict.value if row.status is Status.OK else f"{row.status.label}: {row.reason}"
    if row.status is Status.OK and row.verdict is Verdict.FEW_PROCESSES:
        few = row.processes < FEWEST_PROCESSES
        text = f"{plural(row.processes, 'process', 'es') if few else 'baseline in too few processes'}: {text}"
    notes = [flag.label for flag in row.flags]
    if row.p50_ms is not None and row.processes < most:
        notes.append(f"{row.processes} of {most} processes")
    return f"{text} ({', '.join(notes)})" if notes else text


def _median(row: Comparison) -> Text:
    # Text, because rich would read the brackets of an interval as markup.
    bounds = interval(row.ci_low_ms, row.ci_high_ms, row.p50_ms)
    return Text(f"{milliseconds(row.p50_ms)} {bounds}".rstrip())
