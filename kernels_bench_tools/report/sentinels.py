"""Sentinels over time: reference kernels that every measuring process times, to detect changes of the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from markupsafe import Markup, escape

from kernels_bench_tools.schema.record_io import RecordHead, read_heads

_MAX_MARKS = 400
"""Of more readings, every n-th is drawn."""


@dataclass(frozen=True)
class SentinelHistory:
    """One sentinel on one device."""

    name: str
    count: int
    """Processes that timed it."""
    median: float
    low: float
    high: float
    chart: Markup

    @property
    def spread(self) -> float:
        """Difference of the highest and the lowest median of a process, relative to the median of all."""
        return (self.high - self.low) / self.median if self.median else 0.0


def read_readings(files: Iterable[Path]) -> dict[str, list[RecordHead]]:
    """Return the first record with sentinels of each process, by the slug of the device."""
    found: dict[str, dict[tuple[str, str], RecordHead]] = {}
    for file in files:
        for head in read_heads(file):
            if head.sentinels and head.device:
                found.setdefault(head.device.slug, {}).setdefault((head.run, head.impl), head)
    return {slug: list(heads.values()) for slug, heads in found.items()}


def sentinel_histories(readings: Sequence[RecordHead]) -> list[SentinelHistory]:
    """Return the history of each sentinel of one device."""
    ordered = sorted(readings, key=lambda reading: (reading.ts, reading.impl))
    names = dict.fromkeys(name for reading in ordered for name in reading.sentinels)
    found = []
    for name in sorted(names):
        series = [
            (one.ts, median(one.sentinels[name]))
            for one in ordered
            if one.sentinels.get(name) and min(one.sentinels[name]) > 0
        ]
        if series:
            values = [value for _, value in series]
            chart = _history_chart(name, series[:: -(-len(series) // _MAX_MARKS)])
            found.append(SentinelHistory(name, len(series), median(values), min(values), max(values), chart))
    return found


def _history_chart(name: str, series: Sequence[tuple[str, float]]) -> Markup:
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
