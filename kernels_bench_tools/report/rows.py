"""What pages say of rows beyond their own fields: a latency over all workloads, and what rows can be filtered by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from kernels_bench_tools.report.words import status_mark
from kernels_bench_tools.schema.record import Flag, Status
from kernels_bench_tools.schema.summary import Estimate, Row, geometric_mean


def typical_latency(row: Row) -> Estimate | None:
    """Return the geometric mean of a row's medians in ms; None unless it passed every workload.

    A mean over fewer workloads would compare with no other row. Its interval reaches as far as if all medians erred
    the same way: a process that was slow was slow on all of its workloads.
    """
    if row.passed < row.total:
        return None
    times = [
        (point.p50_ms, point.ci_low_ms, point.ci_high_ms)
        for point in row.points
        if point.status is Status.OK and point.p50_ms is not None
    ]
    if not times:
        return None
    medians, lows, highs = ([number for number in numbers if number] for numbers in zip(*times, strict=True))
    known = len(lows) == len(highs) == len(medians)
    ends = (geometric_mean(lows), geometric_mean(highs)) if known else (0.0, inf)
    return Estimate(geometric_mean(medians), *ends)


def families(rows: Iterable[Row]) -> Sequence[tuple[str, str]]:
    """Return the families of the rows, each with its label, by name; rows without one come last."""
    found = sorted({row.family for row in rows}, key=lambda family: (not family, family))
    return [(family or "other", family or "other") for family in found]


def statuses(rows: Iterable[Row]) -> Sequence[tuple[str, str]]:
    """Return how the rows ended, each with its label, in the order in which statuses are listed."""
    found = {row.status for row in rows}
    return [
        (status.value, f"{status_mark(status).glyph} {status_mark(status).word}")
        for status in Status
        if status in found
    ]


def flags_of(rows: Iterable[Row]) -> Sequence[Flag]:
    """Return the flags that any point of the rows has, in the order in which flags are listed."""
    found = {flag for row in rows for point in row.points for flag in point.flags}
    return [flag for flag in Flag if flag in found]
