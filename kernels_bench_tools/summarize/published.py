"""What somebody has published of a suite, computed again from the bytes that a call has to move."""

from __future__ import annotations

from kernels_bench_tools.schema.suite import NOBODY, PublishedRow, Suite, SuiteDevice, SuiteReport
from kernels_bench_tools.summarize.export import Value
from kernels_bench_tools.summarize.table import NOTHING, latency_text
from kernels_bench_tools.summarize.tabular import csv_text, noted_table


def published_csv(suite: Suite, report: SuiteReport) -> str:
    """Return what was published of the suite beside what its bytes come to, and beside our accelerators, as CSV."""
    header, rows = _published_table(suite, report)
    return csv_text(header, rows)


def published_markdown(suite: Suite, report: SuiteReport) -> str:
    """Return what matters of it as Markdown, for people."""
    header, rows = _published_table(suite, report)
    shown = [index for index, name in enumerate(header) if "Base" not in name][:-1]
    texts = [[_published_text(header[index], row[index]) for index in shown] for row in rows]
    return noted_table([header[index] for index in shown], texts, [str(row[-1]) for row in rows], {"Kernel"})


def _published_table(suite: Suite, report: SuiteReport) -> tuple[list[str], list[list[Value]]]:
    assert suite.published is not None
    copy = suite.published_copy
    names = {kernel.workload for kernel in suite.kernel}
    devices = [device for device in report.devices if _measured(device, names)]
    there = suite.published.device
    header = [
        *("Kernel", f"{there}: Our Latency (ms)", "Printed (GB/s)", "Counted (MB)", "Has to Move (MB)"),
        *("Rate (GB/s)", "Of a Copy There"),
        *(f"{there}: Base Latency (ms)", "Base Printed (GB/s)", "Base Rate (GB/s)"),
        *(column for device in devices for column in _device_columns(device)),
        "Note",
    ]
    rows: list[list[Value]] = []
    for kernel in suite.kernel:
        if kernel.published:
            here = [value for device in devices for value in _device_values(device, kernel.workload)]
            rows.append([kernel.name, *_published(kernel.published, copy), *here, kernel.published.note])
    return header, rows


def _published_text(column: str, value: Value) -> str:
    """Return a value as people read it: times with four digits, rates and sizes whole, parts in percent."""
    if value is None:
        return NOTHING
    if not isinstance(value, float | int):
        return str(value)
    if column.endswith("(ms)"):
        return latency_text(value).removesuffix(" ms")
    return f"{value:.1%}" if column.startswith("Of ") or column.endswith("Of Ceiling") else f"{value:,.0f}"


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
