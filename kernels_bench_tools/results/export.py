"""Summaries as CSV and as plain text, and the tables that both and suites are made of."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    GENERAL,
    DeviceSummary,
    Report,
    Result,
    Summary,
    Verdict,
    results_of,
)
from kernels_bench_tools.results.metrics import csv_metrics, shown_metrics
from kernels_bench_tools.results.views import axis_names, axis_title
from kernels_bench_tools.text.numbers import MISSING, times, times_with_interval
from kernels_bench_tools.text.tables import table, wrapped
from kernels_bench_tools.text.words import plural

Value = str | int | float | bool | None
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~])")
_DIGITS = 6
"""Significant digits of numbers, more than any timer's."""


Columns = dict[str, Callable[[Result], Value]]
_FIRST: Columns = {
    "Implementation": lambda it: it.row.title,
    "Impl ID": lambda it: it.row.implementation,
    "Device": lambda it: it.view.device.name,
    "Workload": lambda it: it.workload.name,
}
_TIMES: Columns = {
    "Dtype": lambda it: it.workload.dtype,
    "Mean (ms)": lambda it: it.point.mean_ms,
    "P10 (ms)": lambda it: it.point.p10_ms,
    "P50 (ms)": lambda it: it.point.p50_ms,
    "P90 (ms)": lambda it: it.point.p90_ms,
    "CI Low (ms)": lambda it: it.point.ci_low_ms,
    "CI High (ms)": lambda it: it.point.ci_high_ms,
    "Reps": lambda it: it.point.reps or None,
    "Speedup": lambda it: it.point.speedup,
    "Verdict": lambda it: "" if it.point.verdict is Verdict.NONE else it.point.verdict.value,
}
_LAST: Columns = {
    "Backend": lambda it: it.row.tags.get("backend", ""),
    "Family": lambda it: it.row.family,
    "Status": lambda it: it.point.status.value,
    "Reason": lambda it: it.point.reason,
    "Speedup Low": lambda it: it.point.speedup_low,
    "Speedup High": lambda it: it.point.speedup_high,
    "Processes": lambda it: it.point.processes if it.point.p50_ms else None,
    "Regime": lambda it: it.point.regime.value if it.point.regime else "",
    "Ceiling": lambda it: it.point.ceiling,
    "Flags": lambda it: " ".join(it.point.flags),
    "Limitation": lambda it: it.point.limitation,
    "Runs": lambda it: it.point.runs if it.point.p50_ms else None,
    "Set": lambda it: it.workload.set,
    "Group": lambda it: it.workload.group,
    "Mode": lambda it: it.workload.mode,
}


def latency_csv(summary: Summary) -> str:
    """Return the summary as CSV: a line for each device, implementation and workload, failures included."""
    axes: Columns = {
        axis_title(name): lambda it, name=name: it.workload.axes.get(name)  # type: ignore[misc]
        for name in axis_names(workload for view in summary.devices for workload in view.workloads)
    }
    metrics: Columns = {
        metric.csv_title: lambda it, metric=metric: metric.csv_value(it.point)  # type: ignore[misc]
        for metric in csv_metrics()
    }
    columns = _FIRST | axes | _TIMES | metrics | _LAST
    return csv_text([*columns], ([value(it) for value in columns.values()] for it in results_of([summary])))


def _passed(report: Report) -> Iterator[Result]:
    """Yield the correct times of a report."""
    return (it for it in results_of(report.operators) if it.point.status is Status.OK and it.point.p50_ms)


def bencher_metrics(report: Report) -> dict[str, dict[str, dict[str, float]]]:
    """Return the times in Bencher's metric format, whose latencies are nanoseconds."""
    benchmarks = {}
    for operator, view, row, _, point in _passed(report):
        ms = {"value": point.p50_ms, "lower_value": point.ci_low_ms, "upper_value": point.ci_high_ms}
        latency = {end: round(time * 1e6, 3) for end, time in ms.items() if time is not None}
        benchmarks[f"{operator}/{row.implementation} {point.workload} {view.device.slug}"] = {
            "latency": latency
        }
    return benchmarks


def pytorch_metrics(report: Report) -> list[dict[str, Any]]:
    """Return the times in the format of PyTorch's benchmark database, a record for each."""
    records = []
    for operator, view, row, workload, point in _passed(report):
        device, environment = view.device, row.environment
        about = {"device": device.slug, "workload": point.workload, "measured": point.measured}
        ends = {"low": point.ci_low_ms, "high": point.ci_high_ms, "processes": point.processes}
        gpu = {"gpu_info": device.name, "gpu_count": 1} if device.kind != "cpu" else {"cpu_info": device.name}
        versions = {"torch": environment.torch, "triton": environment.triton}
        benchmark = {"name": report.title, "mode": workload.mode or "fwd", "dtype": workload.dtype}
        records.append(
            {
                "benchmark": {**benchmark, "extra_info": _texts({**about, **workload.axes})},
                "model": {"name": operator, "type": "micro-benchmark", "backend": row.implementation},
                "metric": {
                    "name": "latency_ms",
                    "benchmark_values": [point.p50_ms],
                    "extra_info": _texts(ends),
                },
                "runners": [{"name": device.slug, "type": device.kind, **gpu}],
                "dependencies": {library: {"version": it} for library, it in versions.items() if it},
            }
        )
    return records


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_safe(value) for value in row] for row in rows)
    return file.getvalue()


def _safe(value: Value) -> Value:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def text_table(summary: Summary | DeviceSummary, width: int = 0) -> str:
    """Return the summary as text: for each view of each device the ranking, then every workload.

    With a ``width`` in characters, longer lines are wrapped, and tables that are wider have fewer columns.
    """
    if isinstance(summary, DeviceSummary):
        return _view(summary, "", width)
    shown = [*summary.devices, *summary.drawn]
    names = [view.device.name for view in shown]
    # One device is named once, above all of its views.
    shared = names[0] if len(names) > 1 and len(set(names)) == 1 and width else ""
    views = [_view(view, shared, width) for view in shown]
    return "\n".join([f"{shared}\n", *views] if shared else views) or f"{summary.title}: no records.\n"


def _view(view: DeviceSummary, shared: str, width: int) -> str:
    titles = {row.implementation: row.title for row in view.rows}
    baseline = f"baseline {titles[view.baseline]}" if view.baseline else "no baseline ran here"
    count = len(view.workloads)
    title = " · ".join(filter(None, ("" if shared else view.device.name, view.view)))
    heading = f"{title or 'all workloads'}: {plural(count, 'workload')}, {baseline}{_few_processes(view)}"
    ranking = [["rank", "implementation", "speed-up", "passed", "status"]]
    if drawn := any(row.drawn for row in view.rows):
        ranking[0][3:3] = ["random shapes:\nvs fastest other", "worst", f"{GENERAL} or\nmore"]
    for row in view.rows:
        place = [MISSING if row.rank is None else str(row.rank), row.title, times_with_interval(row.gain)]
        if row.drawn:
            count = len(row.drawn.ratios)
            place += [
                f"{times(row.drawn.median)} ({count})",
                times(row.drawn.ratios[0]),
                f"{row.drawn.share:.0%}",
            ]
        elif drawn:
            place += [MISSING] * 3
        ranking.append([*place, f"{row.passed}/{row.total}", _outcome(row.status, row.reason)])
    ranked = table(ranking, {0, *range(2, len(ranking[0]) - 1)}, max(width - 2, 0))
    blocks = ["\n".join(wrapped(heading, width)), textwrap.indent(ranked, "  ")]
    # The ranking has the reason of a row that passed nothing.
    measured = [row for row in view.rows if row.passed]
    for at, workload in enumerate(view.workloads if measured else ()):
        points = [row.points[at] for row in measured]
        metrics = [metric for metric in shown_metrics(points) if metric.chart]
        lines = [["", *(metric.title.lower() for metric in metrics), ""]]
        for row, point in zip(measured, points, strict=True):
            outcome = "" if point.status is Status.OK else _outcome(point.status, point.reason)
            flags = ", ".join(flag.label for flag in point.flags)
            notes = "; ".join(filter(None, (outcome, flags, point.limitation)))
            lines.append([row.title, *(metric.print(point) for metric in metrics), notes])
        last = len(metrics) + 1
        right = {1, *range(3, last)}  # the speed-up and the notes can be wrapped
        text = table(lines, right, max(width - 2, 0), optional=(4, 3, *range(5, last)))
        blocks.append(f"{workload.name}\n{textwrap.indent(text, '  ')}")
    return "\n\n".join(blocks) + "\n"


def _few_processes(view: DeviceSummary) -> str:
    """Return that no row has a verdict because of its number of processes; empty if one has."""
    counts = {point.processes for row in view.rows for point in row.points if point.p50_ms is not None}
    if len(counts) != 1 or max(counts) >= FEWEST_PROCESSES:
        return ""
    return f", {plural(max(counts), 'process', 'es')}: no verdict"


def _outcome(status: Status, reason: str) -> str:
    return f"{status.label}: {reason}" if reason else status.label


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str]) -> str:
    """Return a Markdown table, whose columns in ``left`` are aligned to the left."""
    marks = ["---" if title in left else "---:" for title in header]
    # Without what Markdown would take for markup, or for the end of a cell or a line.
    escaped = ([_MARKUP.sub(r"\\\1", " ".join(text.split())) for text in row] for row in rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, marks, *escaped))
