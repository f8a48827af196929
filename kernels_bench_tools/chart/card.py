"""The charts of a kernel's card on the Hub: bars of the kernel and of its reference for each workload."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kernels_bench_tools.chart.palette import COLOURS
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.results.summary import ComparedPoint
from kernels_bench_tools.text.numbers import milliseconds, times

_THEMES = {"light": ("#ffffff", "#1f2328", "#6e7781"), "dark": ("#101623", "#e6edf3", "#8b949e")}
"""Of the background, of texts, and of the reference's bars."""
_WIDTH, _LEFT, _LONGEST, _BAR, _GROUP, _TOP = 720, 16, 520, 13, 54, 64


def card_charts(name: str, rows: Sequence[tuple[str, ComparedPoint]]) -> dict[str, bytes]:
    """Return the four files: times and calls a second, in light and dark. Workloads without a time have no bars."""
    timed = [(workload, row) for workload, row in rows if row.p50_ms]
    return {
        f"benches_{theme}_{quantity}.svg": _chart(name, timed, theme, quantity).encode()
        for theme in _THEMES
        for quantity in ("latency", "throughput")
    }


def _chart(name: str, rows: Sequence[tuple[str, ComparedPoint]], theme: str, quantity: str) -> str:
    background, ink, grey = _THEMES[theme]
    is_time = quantity == "latency"
    found = [
        (workload, row, [ms if is_time else 1000 / ms for ms in (row.p50_ms, row.baseline_ms) if ms])
        for workload, row in rows
    ]
    largest = max((value for *_, values in found for value in values), default=1.0)
    unit = "ms a call, cold caches" if is_time else "calls a second, one after the other"
    height = _TOP + _GROUP * max(len(found), 1)
    drawn = [
        f'<text x="{_LEFT}" y="26" font-size="16" font-weight="600">{escape(name)}: {unit}</text>',
        f'<text x="{_LEFT}" y="45" fill="{grey}">Above the kernel, below its reference. Median.</text>',
    ]
    for number, (workload, row, values) in enumerate(found):
        y = _TOP + _GROUP * number
        faster = f", {times(row.speedup)} as fast as the reference" if row.speedup else ""
        note = faster if row.status is Status.OK else f", {row.status.label}"
        drawn.append(f'<text x="{_LEFT}" y="{y + 10}">{escape(workload + note)}</text>')
        for place, (value, colour) in enumerate(zip(values, (COLOURS[0], grey), strict=False)):
            top, width = y + 15 + (_BAR + 2) * place, max(1.0, _LONGEST * value / largest)
            shown = milliseconds(value) if is_time else f"{value:,.0f}"
            drawn.append(f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>')
            drawn.append(f'<text x="{_LEFT + width + 6:.1f}" y="{top + 11}">{shown}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{ink}"><title>{escape(name)}: {unit}</title>'
        f'<rect width="{_WIDTH}" height="{height}" fill="{background}"/>{"".join(drawn)}</svg>\n'
    )
