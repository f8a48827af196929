"""The ladder of an effect: its speed-up from the single kernel (L1) to the whole model (L4), measured and predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    views = [_view(summary, phase, rows) for phase, rows in summary.predicted_phases.items()]
    name = slugify(" ".join([summary.model, *summary.implementations]))
    drawn = Summary(operator=name, title=f"{title} in {summary.model}", devices=views)
    # The page of the first implementation replaces the link.
    return chart_svg(drawn, SPEEDUP.chart, {"measured": "page", "predicted": "page"})


def _view(summary: EffectSummary, phase: str, rows: Sequence[EffectRow]) -> DeviceSummary:
    names = [f"L{row.effect.level} {row.effect.module}" for row in rows]
    lines: dict[str, list[tuple[float | None, float | None, float | None]]] = {
        "measured": [(row.speedup, row.low, row.high) for row in rows],
        "predicted": [(row.predicted, None, None) for row in rows],
    }
    drawn = [
        Row(
            implementation=line,
            slug=series_slug(line, f"{summary.device.slug} {phase}"),
            title=line,
            status=Status.OK,
            passed=len(rows),
            total=len(rows),
            points=[
                Point(
                    workload=name,
                    status=Status.OK,
                    p50_ms=row.candidate_ms,
                    speedup=value,
                    speedup_low=low,
                    speedup_high=high,
                )
                for name, row, (value, low, high) in zip(names, rows, speedups, strict=True)
            ],
        )
        for line, speedups in lines.items()
    ]
    return DeviceSummary(
        device=summary.device,
        view=phase,
        key=phase,
        workloads=[
            WorkloadSummary(name=name, axes={"level": label})
            for name, label in zip(names, _labels(rows), strict=True)
        ],
        rows=drawn,
    )


def _labels(rows: Sequence[EffectRow]) -> Iterator[str]:
    """Yield the level of each row, with the class of its module where its level has several."""
    for row in rows:
        name, space, inputs = row.effect.module.partition(" ")
        classes = {
            one.effect.module.partition(" ")[0] for one in rows if one.effect.level == row.effect.level
        }
        shown = inputs if len(classes) == 1 and row.effect.level < MODEL_LEVEL else f"{name}{space}{inputs}"
        yield f"L{row.effect.level} {shown}".rstrip()
