"""The table that people take away: one line for each device, implementation and workload."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from kernels_bench_tools.schema.record import Record
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row, Summary, Verdict, WorkloadSummary
from kernels_bench_tools.summarize.metrics import LATENCY, METRICS
from kernels_bench_tools.summarize.sources import Attempt
from kernels_bench_tools.summarize.views import View
from kernels_bench_tools.summarize.workloads import axis_names, axis_title

Value = str | int | float | bool | None
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_DIGITS = 6
"""Significant digits of numbers, more than any timer's."""
_TIMES = ("Mean (ms)", "P10 (ms)", "P50 (ms)", "P90 (ms)", "CI Low (ms)", "CI High (ms)", "Reps")


def latency_csv(summary: Summary, attempts: Sequence[Attempt]) -> str:
    """Return the summary as CSV, failures included, lines ended by a line feed.

    A spreadsheet would run text that begins like a formula: such text gets an apostrophe in front.

    Args:
        summary: What to write, in its order.
        attempts: The attempts that it was made from, for what only records hold.
    """
    known = {(attempt.device.slug, attempt.implementation, attempt.view): attempt for attempt in attempts}
    axes = axis_names(workload for device in summary.devices for workload in device.workloads)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_header(axes))
    for device in summary.devices:
        for row in device.rows:
            for workload, point in _cells(device, row):
                record = _record(known, device, row, workload)
                values = _values(device, row, workload, point, record, axes)
                writer.writerow([safe(value) for value in values.values()])
    return file.getvalue()


def _header(axes: Sequence[str]) -> list[str]:
    metrics = [metric.label for metric in METRICS if metric is not LATENCY]
    return [
        *("Implementation", "Impl ID", "Device", "Workload"),
        *map(axis_title, axes),
        *("Dtype", *_TIMES, "Speedup", "Verdict", *metrics),
        *("Backend", "Family", "Status", "Reason"),
        *("Speedup Low", "Speedup High", "Processes", "Regime", "Ceiling", "Flags"),
        *("Set", "Group", "Mode"),
    ]


def _record(
    known: Mapping[tuple[str, str, View], Attempt],
    device: DeviceSummary,
    row: Row,
    workload: WorkloadSummary,
) -> Record | None:
    """Return the record of a row's workload; None where the row has no workload, and so no measured values."""
    view = View(workload.group, workload.set, workload.mode)
    attempt = known.get((device.device.slug, row.implementation, view))
    return attempt.record(workload.name) if attempt else None


def _cells(device: DeviceSummary, row: Row) -> list[tuple[WorkloadSummary, Point]]:
    """Return a row's workloads and points; one nameless where the view has none, to tell the reason."""
    if not device.workloads:
        return [(WorkloadSummary(name=""), Point(workload="", status=row.status, reason=row.reason))]
    return list(zip(device.workloads, row.points, strict=True))


def _values(
    device: DeviceSummary,
    row: Row,
    workload: WorkloadSummary,
    point: Point,
    record: Record | None,
    axes: Sequence[str],
) -> Mapping[str, Value]:
    latency = record.lat_ms if record else None
    quantiles = (latency.mean, latency.p10, latency.p50, latency.p90) if latency else (None,) * 4
    interval = (point.ci_low_ms, point.ci_high_ms, point.reps or None)
    metrics = (metric.value(record) if record else None for metric in METRICS if metric is not LATENCY)
    verdict = "" if point.verdict is Verdict.NONE else point.verdict.value
    values: list[Value] = [
        *(row.title, row.implementation, device.device.name, workload.name),
        *(workload.axes.get(name) for name in axes),
        *(workload.dtype, *quantiles, *interval, point.speedup, verdict, *metrics),
        *(row.tags.get("backend", ""), row.family, point.status.value, point.reason),
        *(point.speedup_low, point.speedup_high, point.processes if point.p50_ms else None),
        *(point.regime.value if point.regime else "", point.ceiling, " ".join(point.flags)),
        *(workload.set, workload.group, workload.mode),
    ]
    return dict(zip(_header(axes), values, strict=True))


def safe(value: Value) -> Value:
    """Return a value as a CSV file holds it: six digits of a number, and no text that a spreadsheet would run."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
