"""The plain text table that a cell prints while it measures."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from kernels_bench_tools.schema.record import Latency, Record, Timing

_COLUMNS = (
    ("median", 11),
    ("±", 6),
    ("n", 4),
    ("GB/s", 7),
    ("of ceiling", 13),
    ("host", 9),
    ("e2e", 9),
)
"""Title and width of the columns between the workload's name and the status."""


class Table:
    """Prints one line per workload: its name before it runs, the rest after.

    Args:
        names: The workloads' names, for the width of their column.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(len(name) for name in (*names, "workload"))
        print(f"{'workload':<{self._width}}  {_line([title for title, _ in _COLUMNS])}  status")

    def start(self, name: str) -> None:
        """Print which workload runs now."""
        print(f"{name:<{self._width}}  ", end="", flush=True)

    def finish(self, record: Record) -> None:
        """Print how it ended."""
        print(f"{_line(_figures(record))}  {_outcome(record)}", flush=True)


def _line(values: Sequence[str]) -> str:
    return "  ".join(f"{value:>{width}}" for value, (_, width) in zip(values, _COLUMNS, strict=True))


def _figures(record: Record) -> list[str]:
    latency, quantities = record.lat_ms, record.quantities
    if latency is None:
        return [""] * len(_COLUMNS)
    near = record.roofline
    return [
        f"{format_ms(latency.p50)} ms",
        _half_width(latency),
        str(latency.reps),
        f"{record.work.bytes_moved / latency.p50 / 1e6:.1f}" if record.work else "",
        f"{near.fraction:.0%} {near.ceiling.removeprefix('matmul_')}" if near else "",
        _short(quantities.host_submit if quantities else None),
        _short(quantities.e2e if quantities else None),
    ]


def _half_width(latency: Latency) -> str:
    """Return how far the interval reaches from the median, to the further side, in percent of it."""
    if latency.ci_low is None or latency.ci_high is None or latency.p50 <= 0:
        return ""
    reach = max(latency.p50 - latency.ci_low, latency.ci_high - latency.p50)
    return f"{100 * reach / latency.p50:.1f} %"


def _short(timing: Timing | None) -> str:
    return format_ms(timing.p50) if timing else ""


def _outcome(record: Record) -> str:
    reason = f": {record.err.msg}" if record.err else ""
    flags = f" [{', '.join(flag.value for flag in record.flags)}]" if record.flags else ""
    return f"{record.outcome.value}{flags}{reason}"


def format_ms(value: float) -> str:
    """Return milliseconds with four significant digits: kernels take from 0.001 to 1000.

    >>> format_ms(0.0019846), format_ms(0.1984), format_ms(12.3456), format_ms(1234.5)
    ('0.001985', '0.1984', '12.35', '1234')
    """
    if value <= 0:
        return "0"
    return f"{value:.{max(0, 3 - floor(log10(value)))}f}"
