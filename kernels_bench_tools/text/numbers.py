"""Numbers in tables, charts and pages: one format for each unit, and for intervals."""

from __future__ import annotations

from math import floor, log10

from kernels_bench_tools.estimate import Estimate

MISSING = "–"


def decimals(value: float, significant: int = 4) -> int:
    """Return how many decimals show ``value`` with this many significant digits."""
    return 0 if value == 0 else max(0, significant - 1 - floor(log10(abs(value))))


def milliseconds(value: float | None) -> str:
    """Return a time with four significant digits, without its unit.

    >>> milliseconds(0.0109123), milliseconds(12.3456), milliseconds(None)
    ('0.01091', '12.35', '–')
    """
    return MISSING if value is None else f"{value:,.{decimals(value)}f}"


def two_digits(value: float) -> str:
    """Return a number with two significant digits.

    >>> two_digits(0.10642), two_digits(12.3)
    ('0.11', '12')
    """
    return f"{value:,.{decimals(value, 2)}f}"


def interval(estimate: Estimate | None) -> str:
    """Return the interval of a median with as many decimals as the median; empty if there is none.

    >>> interval(Estimate(0.12345, 0.12, 0.13))
    '[0.1200, 0.1300]'
    """
    if estimate is None or not estimate.known:
        return ""
    places = decimals(estimate.value)
    return f"[{estimate.low:,.{places}f}, {estimate.high:,.{places}f}]"


def times(value: float | None) -> str:
    """Return a speed-up.

    >>> times(1.2549), times(12.34), times(0.0412), times(None)
    ('1.25×', '12.3×', '0.041×', '–')
    """
    if value is None:
        return MISSING
    return f"{value:,.{1 if value >= 10 else max(2, decimals(value, 2))}f}×"


def times_interval(estimate: Estimate | None) -> str:
    """Return the interval of a speed-up; empty if there is none, as of exactly 1.

    >>> times_interval(Estimate(1.25, 1.2449, 1.2611)), times_interval(Estimate(0.0727, 0.07261, 0.07284))
    ('[1.245, 1.261]', '[0.0726, 0.0728]')
    >>> times_interval(Estimate(1.5, 0.4571, 124.32)), times_interval(Estimate(1.0, 1.0, 1.0))
    ('[0.457, 124]', '')
    """
    if estimate is None or not estimate.known or estimate.low == estimate.high:
        return ""
    low, high = estimate.low, estimate.high
    if high > 2 * low:
        return f"[{low:,.{decimals(low, 3)}f}, {high:,.{decimals(high, 3)}f}]"
    places = max(3 if low < 10 else 2, decimals(low, 3))
    return f"[{low:,.{places}f}, {high:,.{places}f}]"


def times_with_interval(estimate: Estimate | None) -> str:
    """Return a speed-up with its interval, if there is one.

    >>> times_with_interval(Estimate(1.521, 1.5031, 1.5411)), times_with_interval(Estimate.of(2.0, None, None))
    ('1.52× [1.503, 1.541]', '2.00×')
    """
    return f"{times(estimate and estimate.value)} {times_interval(estimate)}".rstrip()


def percent(value: float | None) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.9234), percent(0.0042), percent(None)
    ('92 %', '0.42 %', '–')
    """
    if value is None:
        return MISSING
    return f"{100 * value:.0f} %" if abs(value) >= 0.1 else f"{100 * value:.2g} %"


def deviation(value: float | None) -> str:
    """Return a relative difference with its sign.

    >>> deviation(0.0034), deviation(-0.0002)
    ('+0.34 %', '-0.02 %')
    """
    return MISSING if value is None else f"{100 * value:+.2f} %"


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


def tick(value: float) -> str:
    """Return a number as an axis shows it, with up to six significant digits.

    >>> tick(0.05), tick(2500.0)
    ('0.05', '2,500')
    """
    return f"{value:,g}" if value < 1e6 else f"{value:g}"


def sortable(value: float | None) -> str:
    """Return a number as the key that a table is sorted by; empty for none.

    >>> sortable(2.0497304), sortable(30067200), sortable(None)
    ('2.0497', '3.0067e+07', '')
    """
    return "" if value is None else f"{value:.5g}"


def size(value: float | None) -> str:
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


_FORMATS = {"ms": milliseconds, "x": times, "B": size, "fraction": percent}


def with_unit(value: float | None, unit: str) -> str:
    """Return a number as tables show it, in the format of its unit; the unit follows if the format has none.

    >>> with_unit(0.1984, "ms"), with_unit(1.5, "x"), with_unit(4096, "B"), with_unit(0.92, "fraction")
    ('0.1984 ms', '1.50×', '4 KiB', '92 %')
    >>> with_unit(3124.7, "GB/s"), with_unit(0.0156, "")
    ('3,125 GB/s', '0.0156')
    """
    text = number(value, unit)
    return text if value is None or unit in {"x", "B", "fraction", ""} else f"{text} {unit}"


def number(value: float | None, unit: str) -> str:
    """Return a number in the format of its unit, for a column that is headed by the unit.

    >>> number(0.1984, "ms"), number(3124.7, "GB/s"), number(None, "ms")
    ('0.1984', '3,125', '–')
    """
    return _FORMATS.get(unit, quantity)(value)
