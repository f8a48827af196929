"""When things were measured, as records say it: pages never ask what time it is."""

from __future__ import annotations

from collections.abc import Iterable

from kernels_bench_tools.schema.summary import DeviceSummary, Row


def day(stamp: str) -> str:
    """Return the day of a timestamp, UTC; empty for none.

    >>> day("2026-11-20T23:50:09.350+00:00")
    '2026-11-20'
    """
    return stamp[:10]


def days(rows: Iterable[Row]) -> list[str]:
    """Return the days, UTC, on which rows were measured or tried, oldest first."""
    return sorted({day(point.measured) for row in rows for point in row.points if point.measured})


def day_range(found: Iterable[str]) -> str:
    """Return days as a page prints them; empty for none.

    >>> day_range(["2026-11-20"]), day_range(["2026-11-18", "2026-11-20"])
    ('2026-11-20', '2026-11-18 to 2026-11-20')
    """
    known = sorted(found)
    if not known:
        return ""
    return known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"


def latest(views: Iterable[DeviceSummary]) -> str:
    """Return the timestamp of the youngest record; empty if there is none."""
    stamps = (point.measured for view in views for row in view.rows for point in row.points)
    return max(stamps, default="")
