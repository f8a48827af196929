"""What binds the workloads of a panel, as shaded spans behind the lines with a word in each."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

from kernels_bench_tools.schema.record import Regime
from kernels_bench_tools.schema.summary import DeviceSummary
from kernels_bench_tools.summarize.chart.spec import passed

_WORDS = {
    Regime.LAUNCH: "launch-bound",
    Regime.L2: "in cache",
    Regime.TRANSITION: "cache and memory",
    Regime.HBM: "memory-bound",
    Regime.COMPUTE: "compute-bound",
}
_SHADES = {
    Regime.LAUNCH: 0.13,
    Regime.L2: 0.09,
    Regime.TRANSITION: 0.06,
    Regime.HBM: 0.03,
    Regime.COMPUTE: 0.0,
}
_LETTER = 0.062
"""Width of a letter of the measuring font at 8.5 points, in inches, on average."""
_MARGIN = 0.1


def regimes(view: DeviceSummary) -> list[Regime | None]:
    """Return for each workload what binds most of those that passed it; None where nothing is known.

    A slow implementation of a small workload can be bound by memory where others wait for the launch.
    """
    found = []
    for at in range(len(view.workloads)):
        known = [row.points[at].regime for row in view.rows if passed(row.points[at])]
        counts = Counter(regime for regime in known if regime is not None)
        found.append(counts.most_common(1)[0][0] if counts else None)
    return found


def draw_regimes(axes: Any, view: DeviceSummary, slot: float) -> None:
    """Shade the workloads by their regime, and name each span that has room for its word.

    Args:
        axes: Where; x counts the workloads from 0.
        view: What.
        slot: Inches from one workload to the next.
    """
    ink = axes.spines["bottom"].get_edgecolor()
    for regime, run in groupby(enumerate(regimes(view)), key=lambda pair: pair[1]):
        if regime is None:
            continue
        places = [at for at, _ in run]
        start, end = max(places[0] - 0.5, -0.4), min(places[-1] + 0.5, len(view.workloads) - 0.6)
        if shade := _SHADES[regime]:
            axes.axvspan(start, end, facecolor=ink, alpha=shade, linewidth=0, zorder=0, clip_on=False)
        room = (end - start) * slot
        word = next((word for word in _spellings(regime) if len(word) * _LETTER + _MARGIN <= room), "")
        middle, top = (start + end) / 2, axes.get_xaxis_transform()
        axes.text(
            middle, 0.985, word, transform=top, ha="center", va="top", fontsize=8.5, alpha=0.8, zorder=1
        )


def _spellings(regime: Regime) -> list[str]:
    word = _WORDS[regime]
    return [word, word.replace("-bound", "").replace("cache and memory", "mixed").removeprefix("in ")]
