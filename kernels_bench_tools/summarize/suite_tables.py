"""A suite's tables: for a terminal, for Markdown, and as CSV; and what was published of it, computed again."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from kernels_bench_tools.suites import (
    NOBODY,
    PublishedRow,
    Suite,
    SuiteDevice,
    SuiteEntry,
    SuiteReport,
    SuiteRow,
)
from kernels_bench_tools.summarize.exports import Value, safe
from kernels_bench_tools.summarize.table import aligned, latency_text, speedup_text

HEADING = "FINAL BENCHMARK REPORT"
_NOTHING = "–"
_COLUMNS = (
    *("Kernel", "Our Latency (ms)", "Base Latency (ms)", "Speedup", "Metric", "Our Perf", "Base Perf"),
    *("Of Ceiling", "Best Other", "Best Other (ms)"),
)
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
    parts = [f"# {report.title}\n"]
    for device in report.devices:
        parts.append(f"## {device.name}\n")
        lines = [[*_texts(row), row.reason] for row in device.rows]
        header = [*_COLUMNS, "Note"]
        marks = ["---" if index in {0, 4, 8, 10} else "---:" for index in range(len(header))]
        parts.append("\n".join(map(_markdown_line, [header, marks, *lines])) + "\n")
    return "\n".join(parts)


def report_csv(report: SuiteReport) -> str:
    """Return the rows of all devices as CSV."""
    return _csv(
        [*_COLUMNS, *_MORE],
        (_values(device, row) for device in report.devices for row in device.rows),
    )


def published_csv(suite: Suite, report: SuiteReport) -> str:
    """Return what was published of the suite beside what its bytes come to, and beside our accelerators, as CSV."""
    assert suite.published is not None
    copy = suite.published_copy
    devices = [
        device for device in report.devices if any(row.ours and row.ours.p50_ms for row in device.rows)
    ]
    there = suite.published.device
    header = [
        *("Kernel", f"{there}: Our Latency (ms)", "Printed (GB/s)", "Counted (MB)", "Has to Move (MB)"),
        *(
            "Rate (GB/s)",
            "Of a Copy There",
            f"{there}: Base Latency (ms)",
            "Base Printed (GB/s)",
            "Base Rate (GB/s)",
        ),
        *(column for device in devices for column in _device_columns(device)),
        "Note",
    ]
    rows = []
    for kernel in suite.kernel:
        if kernel.published:
            here = [value for device in devices for value in _device_values(device, kernel.workload)]
            rows.append([kernel.name, *_published(kernel.published, copy), *here, kernel.published.note])
    return _csv(header, rows)


def _published(row: PublishedRow, copy: float | None) -> list[Value]:
    rate = row.bytes / row.ours_ms / 1e6
    base = (row.base_copies_bytes or row.bytes) / row.base_ms / 1e6
    return [
        *(row.ours_ms, row.ours_gb_per_s, row.counted_bytes / 1e6, row.bytes / 1e6),
        *(rate, rate / copy if copy else None),
        *(row.base_ms, row.base_gb_per_s, base),
    ]


def _device_columns(device: SuiteDevice) -> list[str]:
    return [f"{device.name}: {what}" for what in ("Our Latency (ms)", "Rate (GB/s)", "Of Ceiling")]


def _measured(device: SuiteDevice, workloads: set[str]) -> bool:
    return any(row.ours and row.ours.p50_ms for row in device.rows if row.workload in workloads)


def _device_values(device: SuiteDevice, workload: str) -> list[Value]:
    row = next(row for row in device.rows if row.workload == workload)
    ours = row.ours or NOBODY
    return [ours.p50_ms, ours.rate, row.fraction]


def _texts(row: SuiteRow) -> list[str]:
    """Return a row's columns as people read them."""
    ours, base, best = (entry or NOBODY for entry in (row.ours, row.base, row.best))
    return [
        *(row.kernel, _time(ours), _time(base), speedup_text(row.speedup)),
        *(row.metric, _rate(ours), _rate(base)),
        _NOTHING if row.fraction is None else f"{row.fraction:.1%} of {row.ceiling}",
        *(best.title or _NOTHING, _time(best)),
    ]


def _time(entry: SuiteEntry) -> str:
    return latency_text(entry.p50_ms).removesuffix(" ms")


def _rate(entry: SuiteEntry) -> str:
    if entry.rate is None:
        return _NOTHING
    return f"{entry.rate:,.0f}" if entry.rate >= 10 else f"{entry.rate:.3g}"


def _values(device: SuiteDevice, row: SuiteRow) -> list[Value]:
    ours, base, best = (entry or NOBODY for entry in (row.ours, row.base, row.best))
    return [
        *(row.kernel, ours.p50_ms, base.p50_ms, row.speedup),
        *(row.metric, ours.rate, base.rate, row.fraction, best.title, best.p50_ms),
        *(ours.title, base.title, row.ceiling, device.name, row.operator, row.workload),
        *(ours.status, row.reason),
    ]


def _markdown_line(texts: Sequence[str]) -> str:
    cells = (text.replace("|", r"\|").replace("\n", " ") for text in texts)
    return f"| {' | '.join(cells)} |"


def _csv(header: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([safe(value) for value in row])
    return file.getvalue()
