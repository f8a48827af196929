"""Reference kernels that every measuring process times: whether a device kept its speed while it was used."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from markupsafe import Markup, escape

from kernels_bench_tools.schema.record_io import RecordHead, read_heads

_MOST = 400
"""Marks of a drawing; of more readings, every n-th is drawn."""


@dataclass(frozen=True)
class SentinelView:
    """One sentinel on one device."""

    name: str
    count: int
    """Processes that timed it."""
    median: float
    low: float
    high: float
    drawing: Markup

    @property
    def spread(self) -> float:
        """How far the highest median of a process lies above the lowest, relative to the median of all."""
        return (self.high - self.low) / self.median if self.median else 0.0


def record_files(root: Path, folder: str) -> list[Path]:
    """Return the files of committed records of an operator, in their order."""
    return sorted((root / posixpath.join(folder, "results", "records")).glob("*/*.jsonl"))


def read_sentinels(files: Iterable[Path]) -> Iterator[RecordHead]:
    """Yield the first record with sentinels of each process; files and lines that cannot be read are skipped."""
    seen: set[tuple[str, str]] = set()
    for file in files:
        for head in read_heads(file):
            if head.sentinels and head.device and (head.run, head.impl) not in seen:
                seen.add((head.run, head.impl))
                yield head


def sentinel_views(readings: Sequence[RecordHead]) -> list[SentinelView]:
    """Return each sentinel of one device over time."""
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
            drawing = _drawing(name, series[:: -(-len(series) // _MOST)])
            found.append(SentinelView(name, len(series), median(values), min(values), max(values), drawing))
    return found


def _drawing(name: str, series: Sequence[tuple[str, float]]) -> Markup:
    """Return the medians of the processes in the order of their time; the band is 2 % around the median of all."""
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
