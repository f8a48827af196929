"""Small charts without axes: sentinels over time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from markupsafe import Markup, escape


def sentinel_sparkline(name: str, series: Sequence[tuple[str, float]]) -> Markup:
    """Return a chart of the processes' medians over time, with a band of 2 % around the median of all."""
    width, height = 320, 60
    values = [value for _, value in series]
    middle = median(values)
    reach = max(0.02, *(abs(value / middle - 1) for value in values))
    across = (width - 12) / max(1, len(series) - 1)
    marks = "".join(
        f"M{6 + number * across:.1f} {height / 2 - (value / middle - 1) / reach * (height / 2 - 5):.1f}h0"
        for number, value in enumerate(values)
    )
    band = 0.02 / reach * (height / 2 - 5)
    label = escape(f"{name} from {series[0][0][:10]} to {series[-1][0][:10]}, process by process")
    return Markup(  # noqa: S704 - numbers, and a label that was escaped
        f'<svg class="spark dots" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f'<rect class="band" x="0" y="{height / 2 - band:.1f}" width="{width}" height="{2 * band:.1f}"/>'
        f'<path class="best" d="{marks}"/></svg>'
    )
