"""A badge for each operator: its name, its winner and how many implementations pass, as an SVG to embed."""

from __future__ import annotations

from html import escape

from kernels_bench_tools.report.device_rows import fastest, passing, row_title
from kernels_bench_tools.report.format import times
from kernels_bench_tools.report.operators import Operator
from kernels_bench_tools.report.words import plain_text

_FONT = 'font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11"'
_NARROW, _WIDE = "fijlrtI1.,:;!|()[]' ·", "mwMW@%"


def operator_badge_svg(operator: Operator) -> bytes:
    """Return the badge of an operator, of the first view of its first device."""
    label, words = plain_text(operator.title), plain_text(badge_words(operator))
    return _badge(label, words, good=bool(operator.views)).encode()


def badge_words(operator: Operator) -> str:
    """Return what the badge says: ``"2.05× PyTorch · 8/14 ok"``."""
    if not operator.views:
        return "not measured"
    view = operator.views[0]
    passed = f"{passing(view)}/{len(view.rows)} ok"
    first = fastest(view)
    if first is None:
        return passed
    if first.implementation == view.baseline or first.speedup is None:
        return f"{first.title} · {passed}"
    return f"{times(first.speedup)} {row_title(view, view.baseline)} · {passed}"


def _badge(label: str, words: str, *, good: bool) -> str:
    left, right = _width(label) + 12, _width(words) + 12
    colour = "#1a6b3c" if good else "#5a5f66"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(words)}">\n'
        f"<title>{escape(label)}: {escape(words)}</title>\n"
        f'<rect width="{left + right}" height="20" rx="3" fill="#2b3038"/>\n'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{colour}"/>\n'
        f'<g fill="#fff" text-anchor="middle" {_FONT}>\n'
        f'<text x="{left / 2:g}" y="14" textLength="{left - 12}">{escape(label)}</text>\n'
        f'<text x="{left + right / 2:g}" y="14" textLength="{right - 12}">{escape(words)}</text>\n'
        "</g>\n</svg>\n"
    )


def _width(text: str) -> int:
    """Return about how wide a text is; ``textLength`` makes it exactly so, whatever font there is."""
    return round(sum(4.0 if char in _NARROW else 10.0 if char in _WIDE else 6.9 for char in text))
