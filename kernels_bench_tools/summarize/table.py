"""Summaries as plain text, for a terminal and for a cell's output."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_bench_tools.schema.record import Regime, Status
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row, Summary, Verdict
from kernels_bench_tools.summarize.words import flag_words

NOTHING = "–"


def render_table(summary: Summary | DeviceSummary) -> str:
    """Return the summary as text: for each view of each device the ranking, then every workload."""
    if isinstance(summary, DeviceSummary):
        return _device(summary)
    if not summary.devices:
        return f"{summary.title}: no records.\n"
    return "\n".join(_device(device) for device in summary.devices)


def _device(device: DeviceSummary) -> str:
    names = {row.implementation: row.title for row in device.rows}
    baseline = f"baseline {names[device.baseline]}" if device.baseline else "no baseline ran here"
    count = len(device.workloads)
    place = " · ".join(filter(None, (device.device.name, device.view)))
    heading = f"{place}: {count} workload{'' if count == 1 else 's'}, {baseline}"
    blocks = [heading, _ranking(device)]
    if any(row.passed for row in device.rows):
        blocks += [f"{workload.name}\n{_points(device, at)}" for at, workload in enumerate(device.workloads)]
    return "\n\n".join(blocks) + "\n"


def _ranking(device: DeviceSummary) -> str:
    header = ["rank", "implementation", "speed-up", "passed", "status"]
    return aligned([header, *map(_ranking_line, device.rows)], right={0, 2, 3})


def _ranking_line(row: Row) -> list[str]:
    return [
        NOTHING if row.rank is None else str(row.rank),
        row.title,
        ratio_text(row.speedup, row.speedup_low, row.speedup_high),
        f"{row.passed}/{row.total}",
        outcome_text(row.status, row.reason),
    ]


def _points(device: DeviceSummary, index: int) -> str:
    # What passed nothing has told its reason in the ranking.
    lines = [_point_line(row, row.points[index]) for row in device.rows if row.passed]
    return aligned(lines, right={1, 2, 3, 5, 6})


def _point_line(row: Row, point: Point) -> list[str]:
    verdict = "" if point.verdict is Verdict.NONE else point.verdict.value
    outcome = "" if point.status is Status.OK else outcome_text(point.status, point.reason)
    return [
        row.title,
        latency_text(point.p50_ms),
        spread_text(point.p50_ms, point.ci_low_ms, point.ci_high_ms),
        ratio_text(point.speedup, point.speedup_low, point.speedup_high) if point.speedup else "",
        verdict,
        rate_text(point),
        fraction_text(point),
        "; ".join(filter(None, (outcome, flag_words(point.flags)))),
    ]


def latency_text(ms: float | None) -> str:
    """Return a latency with four digits that matter and its unit; a dash for none."""
    return NOTHING if ms is None else f"{ms:#.4g} ms" if ms < 1000 else f"{ms:.0f} ms"


def spread_text(median: float | None, low: float | None, high: float | None) -> str:
    """Return how far the interval reaches from the median, in percent of it; empty for none."""
    if not median or low is None or high is None:
        return ""
    return f"±{max(high - median, median - low) / median:.1%}"


def speedup_text(speedup: float | None) -> str:
    """Return a speed-up as ``1.52x``; a dash for none."""
    return NOTHING if speedup is None else f"{speedup:.2f}x"


def ratio_text(speedup: float | None, low: float | None, high: float | None) -> str:
    """Return a speed-up and its interval as ``1.52x [1.503, 1.541]``; no interval for exactly 1."""
    if low is None or high is None or low == high:
        return speedup_text(speedup)
    ends = (f"{end:.3f}" if end < 10 else f"{end:.4g}" for end in (low, high))
    return f"{speedup_text(speedup)} [{', '.join(ends)}]"


def rate_text(point: Point) -> str:
    """Return what bounds a point as a rate: ``688 TFLOP/s`` or ``4,102 GB/s``; empty where nothing is known."""
    if point.regime is Regime.COMPUTE and point.tflop_per_s is not None:
        rate = point.tflop_per_s
        return f"{rate:.0f} TFLOP/s" if rate >= 10 else f"{1e3 * rate:,.0f} GFLOP/s"
    return "" if point.gb_per_s is None else f"{point.gb_per_s:,.0f} GB/s"


def fraction_text(point: Point) -> str:
    """Return how much of its ceiling a point reaches, as ``91% of copy``; its regime where none is known."""
    if point.fraction is not None:
        return f"{point.fraction:.0%} of {point.ceiling}"
    return point.regime.value if point.regime else ""


def outcome_text(status: Status, reason: str) -> str:
    """Return a status and, if there is one, its reason."""
    return f"{status.value}: {reason}" if reason else status.value


def aligned(lines: Sequence[Sequence[str]], right: set[int]) -> str:
    """Return the lines with their columns aligned, two spaces apart and two in front."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = [
        [
            text.rjust(width) if index in right else text.ljust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join("  " + "  ".join(line).rstrip() for line in cells)
