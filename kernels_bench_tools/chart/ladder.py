"""The ladder of an effect: its speed-up from the single kernel (L1) to the whole model (L4), measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_bench_tools.chart.figure import chart_svg
from kernels_bench_tools.records.model import MODEL_LEVEL
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Summary, WorkloadSummary
from kernels_bench_tools.results.effects import EffectRow, EffectSummary
from kernels_bench_tools.results.metrics import SPEEDUP
from kernels_bench_tools.text import series_slug, slugify


def ladder_svg(summary: EffectSummary) -> bytes:
    """Return the ladder as SVG with a panel for each predicted phase; see :func:`~kernels_bench_tools.chart.figure.chart_svg`."""
    title = " + ".join(name.rpartition("/")[2] for name in summary.implementations)
    drawn = Summary(
        operator=slugify(" ".join([summary.model, *summary.implementations])),
        title=f"{title} in {summary.model}",
        devices=[_view(summary, phase, rows) for phase, rows in summary.predicted_phases.items()],
    )
    # The page of the first implementation replaces the link.
    return chart_svg(drawn, SPEEDUP.chart, {"measured": "page", "predicted": "page"})


def _view(summary: EffectSummary, phase: str, rows: Sequence[EffectRow]) -> DeviceSummary:
    def axis(row: EffectRow) -> str:
        """Return the level of a row, with the class of its module where its level has several."""
        name, space, inputs = row.effect.module.partition(" ")
        classes = {
            one.effect.module.partition(" ")[0] for one in rows if one.effect.level == row.effect.level
        }
        shown = inputs if len(classes) == 1 and row.effect.level < MODEL_LEVEL else f"{name}{space}{inputs}"
        return f"L{row.effect.level} {shown}".rstrip()

    def point(
        row: EffectRow, value: float | None, low: float | None = None, high: float | None = None
    ) -> Point:
        return Point(
            workload=f"L{row.effect.level} {row.effect.module}",
            status=Status.OK,
            p50_ms=row.candidate_ms,
            speedup=value,
            speedup_low=low,
            speedup_high=high,
        )

    lines = {
        "measured": [point(row, row.speedup, row.low, row.high) for row in rows],
        "predicted": [point(row, row.predicted) for row in rows],
    }
    drawn = [
        Row(
            implementation=line,
            slug=series_slug(line, f"{summary.device.slug} {phase}"),
            title=line,
            status=Status.OK,
            passed=len(rows),
            total=len(rows),
            points=points,
        )
        for line, points in lines.items()
    ]
    workloads = [
        WorkloadSummary(name=one.workload, axes={"level": axis(row)})
        for one, row in zip(lines["measured"], rows, strict=True)
    ]
    return DeviceSummary(device=summary.device, view=phase, key=phase, workloads=workloads, rows=drawn)
