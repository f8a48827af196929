"""A suite's tables: for a terminal, as Markdown and as CSV."""

from __future__ import annotations

from kernels_bench_tools.schema.suite import (
    NOBODY,
    SuiteDevice,
    SuiteEntry,
    SuiteReport,
    SuiteRow,
)
from kernels_bench_tools.summarize.export import Value
from kernels_bench_tools.summarize.table import NOTHING, aligned, latency_text, speedup_text
from kernels_bench_tools.summarize.tabular import csv_text, noted_table

HEADING = "FINAL BENCHMARK REPORT"
_COLUMNS = (
    *("Kernel", "Our Latency (ms)", "Base Latency (ms)", "Speedup", "Metric", "Our Perf", "Base Perf"),
    *("Of Ceiling", "Best Other", "Best Other (ms)"),
)
_WORDS = {"Kernel", "Metric", "Best Other"}
_MORE = ("Ours", "Base", "Ceiling", "Device", "Operator", "Workload", "Status", "Reason")


def report_text(report: SuiteReport) -> str:
    """Return the tables of all devices for a terminal."""
    if not report.devices:
        return f"{report.title}: no records. `kbt suite {report.name}` measures it on this machine.\n"
    return "\n".join(device_text(device) for device in report.devices)


def device_text(device: SuiteDevice) -> str:
    """Return one device's table for a terminal; a row without a comparison ends with its reason."""
    lines = [[*_texts(row), row.reason] for row in device.rows]
    table = aligned([[*_COLUMNS, ""], *lines], right={1, 2, 3, 5, 6, 7, 9})
    rule = "=" * len(table.partition("\n")[0])
    return f"{rule}\n {HEADING} · {device.name}\n{rule}\n{table}\n{rule}\n"


def report_markdown(report: SuiteReport) -> str:
    """Return the tables of all devices as Markdown."""
    tables = [
        (
            device.name,
            noted_table(_COLUMNS, map(_texts, device.rows), [row.reason for row in device.rows], _WORDS),
        )
        for device in report.devices
    ]
    nothing = [] if tables else ["No records.\n"]
    return "\n".join([*(f"## {name}\n\n{table}" for name, table in tables), *nothing])


def report_csv(report: SuiteReport) -> str:
    """Return the rows of all devices as CSV."""
    return csv_text(
        [*_COLUMNS, *_MORE],
        (_values(device, row) for device in report.devices for row in device.rows),
    )


def _texts(row: SuiteRow) -> list[str]:
    """Return a row's columns as people read them."""
    ours, base, best = (entry or NOBODY for entry in (row.ours, row.base, row.best))
    return [
        *(row.kernel, _time(ours), _time(base), speedup_text(row.speedup)),
        *(row.metric, _rate(ours), _rate(base)),
        NOTHING if row.fraction is None else f"{row.fraction:.1%} of {row.ceiling}",
        *(best.title or NOTHING, _time(best)),
    ]


def _time(entry: SuiteEntry) -> str:
    return latency_text(entry.p50_ms).removesuffix(" ms")


def _rate(entry: SuiteEntry) -> str:
    if entry.rate is None:
        return NOTHING
    return f"{entry.rate:,.0f}" if entry.rate >= 10 else f"{entry.rate:.3g}"


def _values(device: SuiteDevice, row: SuiteRow) -> list[Value]:
    ours, base, best = (entry or NOBODY for entry in (row.ours, row.base, row.best))
    return [
        *(row.kernel, ours.p50_ms, base.p50_ms, row.speedup),
        *(row.metric, ours.rate, base.rate, row.fraction, best.title, best.p50_ms),
        *(ours.title, base.title, row.ceiling, device.name, row.operator, row.workload),
        *(ours.status, row.reason),
    ]
