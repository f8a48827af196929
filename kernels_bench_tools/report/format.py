"""Numbers as pages print them; the same digits everywhere."""

from __future__ import annotations

from math import floor, log10

MISSING = "–"


def decimals(value: float, significant: int = 4) -> int:
    """Return how many decimals show ``value`` with this many significant digits."""
    if value == 0:
        return 0
    return max(0, significant - 1 - floor(log10(abs(value))))


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds without its unit.

    >>> milliseconds(0.0109123), milliseconds(12.3456), milliseconds(None)
    ('0.01091', '12.35', '–')
    """
    return MISSING if value is None else f"{value:,.{decimals(value)}f}"


def interval(low: float | None, high: float | None, median: float | None) -> str:
    """Return the interval of a median with as many decimals as the median; empty if there is none."""
    if low is None or high is None or median is None:
        return ""
    places = decimals(median)
    return f"[{low:,.{places}f}, {high:,.{places}f}]"


def times(value: float | None) -> str:
    """Return a speed-up.

    >>> times(1.2549), times(12.34), times(0.0412), times(None)
    ('1.25×', '12.3×', '0.041×', '–')
    """
    if value is None:
        return MISSING
    return f"{value:,.{1 if value >= 10 else max(2, decimals(value, 2))}f}×"


def times_interval(low: float | None, high: float | None) -> str:
    """Return the interval of a speed-up; empty if there is none.

    >>> times_interval(1.2449, 1.2611)
    '[1.245, 1.261]'
    >>> times_interval(0.07261, 0.07284)
    '[0.0726, 0.0728]'
    """
    if low is None or high is None:
        return ""
    places = max(3 if low < 10 else 2, decimals(low, 3))
    return f"[{low:,.{places}f}, {high:,.{places}f}]"


def percent(value: float | None) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.9234), percent(0.0042), percent(None)
    ('92 %', '0.42 %', '–')
    """
    if value is None:
        return MISSING
    return f"{100 * value:.0f} %" if abs(value) >= 0.1 else f"{100 * value:.2g} %"


def deviation(value: float | None) -> str:
    """Return by how much something differs, with its sign.

    >>> deviation(0.0034), deviation(-0.0002)
    ('+0.34 %', '-0.02 %')
    """
    return MISSING if value is None else f"{100 * value:+.2f} %"


def microseconds(value: float | None) -> str:
    """Return a time in microseconds without its unit.

    >>> microseconds(1.9834), microseconds(1247.31)
    ('1.983', '1,247')
    """
    return MISSING if value is None else f"{value:,.{decimals(value)}f}"


def quantity(value: float | None) -> str:
    """Return a number with three significant digits, or more where it is large.

    >>> quantity(3124.7), quantity(0.015625), quantity(0.0)
    ('3,125', '0.0156', '0')
    """
    if value is None:
        return MISSING
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.{decimals(value, 3)}f}"


def sortable(value: float | None) -> str:
    """Return a number as tables are sorted by it; empty for none, which comes last.

    >>> sortable(2.0497304), sortable(30067200), sortable(None)
    ('2.0497', '3.0067e+07', '')
    """
    return "" if value is None else f"{value:.5g}"


def size(value: int | None) -> str:
    """Return a number of bytes in the largest fitting binary unit.

    >>> size(512), size(4096), size(268435456)
    ('512 B', '4 KiB', '256 MiB')
    """
    if value is None:
        return MISSING
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"
