"""The table that a cell prints while it measures."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_bench_tools.schema.record import Latency, Record, Timing
from kernels_bench_tools.text import milliseconds

_COLUMNS = (
    ("median", 11),
    ("±", 6),
    ("n", 4),
    ("GB/s", 7),
    ("of peak", 13),
    ("host", 9),
    ("e2e", 9),
)
"""Title and width of the columns between the workload's name and the status."""


class ResultTable:
    """Prints one line per workload: its name before it runs, its figures after."""

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(len(name) for name in (*names, "workload"))
        print(f"{'workload':<{self._width}}  {_line([title for title, _ in _COLUMNS])}  status")

    def start(self, name: str) -> None:
        """Print the name of the workload that runs now."""
        print(f"{name:<{self._width}}  ", end="", flush=True)

    def finish(self, record: Record) -> None:
        """Print its figures and status."""
        print(f"{_line(_figures(record))}  {_status(record)}", flush=True)


def _line(values: Sequence[str]) -> str:
    return "  ".join(f"{value:>{width}}" for value, (_, width) in zip(values, _COLUMNS, strict=True))


def _figures(record: Record) -> list[str]:
    latency, quantities, roofline = record.lat_ms, record.quantities, record.roofline
    if latency is None:
        return [""] * len(_COLUMNS)
    return [
        f"{milliseconds(latency.p50)} ms",
        _half_width(latency),
        str(latency.reps),
        f"{record.work.bytes_moved / latency.p50 / 1e6:.1f}" if record.work else "",
        f"{roofline.fraction:.0%} {roofline.ceiling.removeprefix('matmul_')}" if roofline else "",
        _median(quantities.host_submit if quantities else None),
        _median(quantities.e2e if quantities else None),
    ]


def _half_width(latency: Latency) -> str:
    """Return the larger distance from the median to an end of its interval, in percent."""
    if latency.ci_low is None or latency.ci_high is None or latency.p50 <= 0:
        return ""
    reach = max(latency.p50 - latency.ci_low, latency.ci_high - latency.p50)
    return f"{100 * reach / latency.p50:.1f} %"


def _median(timing: Timing | None) -> str:
    return milliseconds(timing.p50) if timing else ""


def _status(record: Record) -> str:
    reason = f": {record.err.msg}" if record.err else ""
    flags = f" [{', '.join(flag.value for flag in record.flags)}]" if record.flags else ""
    return f"{record.outcome.value}{flags}{reason}"
