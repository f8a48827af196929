"""The plain text table that a cell prints while it measures."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from kernels_bench_tools.records import Record


class Table:
    """Prints one line per workload: its name before it runs, the rest after.

    Args:
        names: The workloads' names, for the width of their column.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(len(name) for name in (*names, "workload"))
        head = f"{'median':>11}  {'95 % interval':>23}  {'samples':>7}  {'GB/s':>7}  status"
        print(f"{'workload':<{self._width}}  {head}")

    def start(self, name: str) -> None:
        """Print which workload runs now."""
        print(f"{name:<{self._width}}  ", end="", flush=True)

    def finish(self, record: Record) -> None:
        """Print how it ended."""
        reason = f": {record.err.msg}" if record.err else ""
        outcome = f"{record.outcome.value}{reason}"
        latency = record.lat_ms
        if latency is None:
            print(f"{'':>11}  {'':>23}  {'':>7}  {'':>7}  {outcome}", flush=True)
            return
        interval = ""
        if latency.ci_low is not None and latency.ci_high is not None:
            interval = f"{format_ms(latency.ci_low)} .. {format_ms(latency.ci_high)}"
        rate = f"{record.work.bytes_moved / latency.p50 / 1e6:.1f}" if record.work else ""
        figures = f"{format_ms(latency.p50):>8} ms  {interval:>23}  {latency.reps:>7}  {rate:>7}"
        print(f"{figures}  {outcome}", flush=True)


def format_ms(value: float) -> str:
    """Return milliseconds with four significant digits: kernels take from 0.001 to 1000.

    >>> format_ms(0.0019846), format_ms(0.1984), format_ms(12.3456), format_ms(1234.5)
    ('0.001985', '0.1984', '12.35', '1234')
    """
    if value <= 0:
        return "0"
    return f"{value:.{max(0, 3 - floor(log10(value)))}f}"
