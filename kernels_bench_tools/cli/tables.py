"""The table of ``kbt run``: an implementation beside its baseline, within 120 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from kernels_bench_tools.schema.record import Record, Status
from kernels_bench_tools.schema.summary import Verdict
from kernels_bench_tools.summarize.rows import Comparison


def count_processes(records: Iterable[Record]) -> int:
    """Return in how many fresh processes the records were measured."""
    return len({record.process for record in records if record.outcome.ran})


def tell_processes(records: Iterable[Record]) -> str:
    """Return the number of processes as the end of a title; empty if nothing was measured."""
    count = count_processes(records)
    return f", {count} process{'es' if count > 1 else ''}" if count else ""


def comparison_table(rows: Sequence[Comparison], baseline: str) -> Table:
    """Return a row for each workload.

    Args:
        rows: What became of the workloads.
        baseline: Title of the baseline, or empty.
    """
    most = max((row.processes for row in rows if row.median_ms is not None), default=1)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("workload", no_wrap=True)
    table.add_column("median ms [95 %]", justify="right", no_wrap=True)
    table.add_column(f"{baseline or 'baseline'} ms", justify="right")
    table.add_column("speed-up [95 %]", justify="right", no_wrap=True)
    # The only column that may be long, so the one that is folded.
    table.add_column("verdict", ratio=1)
    for row in rows:
        table.add_row(
            row.workload or "every workload",
            _with_interval(row.median_ms, row.ci_low_ms, row.ci_high_ms),
            "-" if row.baseline_ms is None else f"{row.baseline_ms:.5g}",
            _speedup(row),
            Text(_verdict(row, most)),
        )
    return table


def in_words(name: str) -> str:
    """Return a status or a flag as people write it."""
    return name.replace("_", " ")


def _verdict(row: Comparison, most: int) -> str:
    told = row.verdict.value if row.status is Status.OK else f"{in_words(row.status.value)}: {row.reason}"
    notes = [in_words(flag.value) for flag in row.flags]
    if row.median_ms is not None and row.processes < most:
        notes.append(f"{row.processes} of {most} processes")
    return f"{told} ({', '.join(notes)})" if notes else told


def _speedup(row: Comparison) -> Text:
    if row.speedup is None:
        return Text("-")
    if row.verdict is Verdict.BASELINE or row.speedup_low is None or row.speedup_high is None:
        return Text(f"{row.speedup:.2f}x")
    # Two digits hide what the verdict is about where the two are nearly the same.
    digits = 3 if row.speedup_high - row.speedup_low < 0.02 else 2
    return Text(f"{row.speedup:.{digits}f}x [{row.speedup_low:.{digits}f}, {row.speedup_high:.{digits}f}]")


def _with_interval(median: float | None, low: float | None, high: float | None) -> Text:
    # Text, because rich would read the interval's brackets as markup.
    if median is None:
        return Text("-")
    if low is None or high is None:
        return Text(f"{median:.5g}")
    return Text(f"{median:.5g} [{low:.5g}, {high:.5g}]")
