"""Suites: workloads of several operators in one table, our implementations beside the baselines and the best others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import write_atomically, write_struct
from kernels_bench_tools.records.build import IMPLEMENTATIONS, Needs, operator_of
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Regime, Status
from kernels_bench_tools.records.suite import (
    Suite,
    SuiteDevice,
    SuiteEntry,
    SuiteKernel,
    SuiteReport,
    SuiteRow,
    read_suite,
)
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Summary, Verdict
from kernels_bench_tools.results.combine import read_needs
from kernels_bench_tools.results.export import Value, csv_text, indented_table, markdown_table
from kernels_bench_tools.results.metrics import speedup_text
from kernels_bench_tools.text import MISSING, milliseconds, quantity

SUMMARY = "summary.json"
GB, TFLOP = "GB/s", "TFLOP/s"
_Views: TypeAlias = dict[tuple[str, str], DeviceSummary]
"""By operator and workload."""
NOT_MEASURED = "not measured on this device"

HEADING = "FINAL BENCHMARK REPORT"
_COLUMNS = (
    *("Kernel", "Our Latency (ms)", "Base Latency (ms)", "Speedup", "Metric", "Our Perf", "Base Perf"),
    *("Of Ceiling", "Best Other", "Best Other (ms)"),
)
_NARROW_COLUMNS = ("Kernel", "Ours (ms)", "Base (ms)", "Speedup")
_TEXT_COLUMNS = {"Kernel", "Metric", "Best Other"}
_CSV_COLUMNS = (
    *("Ours", "Base", "Ceiling", "Device", "Operator", "Workload", "Status", "Reason"),
    *("Speedup Low", "Speedup High", "Verdict", "Processes"),
)
_NO_ENTRY = SuiteEntry(implementation="", title="")


def report_suite(definition: str) -> SuiteReport:
    """Report a suite from the summaries of the combine cells that this cell needs.

    Writes ``report.csv``, ``report.md`` and ``suite.json`` into the working directory, and prints the table of each
    device. ``definition`` is the suite's TOML file, one of the files that this cell needs.
    """
    needs = read_needs("report_suite")
    suite = read_suite(_definition(needs, definition))
    report = suite_report(PurePosixPath(definition).stem, suite, _summaries(needs))
    write_atomically(Path("report.csv"), report_csv(report).encode())
    write_atomically(Path("report.md"), report_markdown(report).encode())
    write_struct(Path("suite.json"), report)
    print(report_text(report))
    return report


def _definition(needs: Needs, definition: str) -> Path:
    for file in needs.files:
        if Path(file).name == definition:
            return Path(file)
    return Path(os.path.normpath(Path(needs.project) / PurePosixPath(needs.notebook).parent / definition))


def _summaries(needs: Needs) -> Iterator[Summary]:
    """Yield the summaries of the needed cells; for one that cannot be read, print the reason."""
    for need in needs.cells:
        path = Path(need.directory) / SUMMARY
        try:
            summary = msgspec.json.decode(path.read_bytes(), type=Summary)
            yield _without_deleted(summary, Path(needs.project), operator_of(need.notebook))
        except (OSError, msgspec.DecodeError) as error:
            what = need.reason or f"its {SUMMARY} cannot be read: {error}"
            print(f"Skipped: {RecordError(f'{need.notebook}:{need.cell}', what)}")


def _without_deleted(summary: Summary, project: Path, operator: str) -> Summary:
    """Return the summary without rows whose notebook the project no longer has; their records may still be there."""
    folder = project / operator / IMPLEMENTATIONS
    if not folder.is_dir():  # on another machine
        return summary

    def exists(row: Row) -> bool:
        notebook = row.provenance.notebook
        # A notebook of several cells has several rows with other names.
        return (folder / f"{row.implementation}.md").is_file() or (
            bool(notebook) and (project / notebook).is_file()
        )

    devices = [
        msgspec.structs.replace(view, rows=[row for row in view.rows if exists(row)])
        for view in summary.devices
    ]
    return msgspec.structs.replace(summary, devices=devices)


def suite_report(name: str, suite: Suite, summaries: Iterable[Summary]) -> SuiteReport:
    """Return the suite's rows on each device that has a record of it, in the order of the summaries' devices."""
    views = _views(suite, summaries)
    return SuiteReport(
        name=name,
        title=suite.title,
        devices=[_device(suite, device, found) for device, found in views.values()],
    )


def _views(suite: Suite, summaries: Iterable[Summary]) -> dict[str, tuple[Device, _Views]]:
    """Return, for each device with a record of the suite, the view of each operator's workloads."""
    known = {summary.operator: summary for summary in summaries}
    views: dict[str, tuple[Device, _Views]] = {}
    for operator in suite.operators:
        for view in known[operator].devices if operator in known else ():
            sets = {name for name, _ in suite.rows_by_set(view.device.kind)}
            for workload in view.workloads:
                if workload.set in sets and not workload.mode:
                    _, found = views.setdefault(view.device.slug, (view.device, {}))
                    found[operator, workload.name] = view
    return views


def _device(suite: Suite, device: Device, views: _Views) -> SuiteDevice:
    rows: list[SuiteRow] = []
    for number, (_, kernels) in enumerate(suite.rows_by_set(device.kind)):
        # A set for other devices is listed where it has been measured.
        if number == 0 or any((kernel.operator, kernel.workload) in views for kernel in kernels):
            rows += [
                _row(kernel, suite.ours, views.get((kernel.operator, kernel.workload))) for kernel in kernels
            ]
    return SuiteDevice(name=device.name, slug=device.slug, rows=rows)


def _row(kernel: SuiteKernel, family: str, view: DeviceSummary | None) -> SuiteRow:
    row = SuiteRow(kernel=kernel.name, operator=kernel.operator, workload=kernel.workload, metric=GB)
    if view is None:
        row.reason = NOT_MEASURED
        return row
    index = [workload.name for workload in view.workloads].index(kernel.workload)
    measured = [(one, one.points[index]) for one in view.rows]
    ours = _fastest([pair for pair in measured if pair[0].family == family])
    base = next((pair for pair in measured if pair[0].implementation == view.baseline), None)
    best = _fastest([pair for pair in measured if pair[0].family != family and pair[1].status is Status.OK])
    row.metric = _metric([pair[1] for pair in (ours, base, best) if pair])
    row.ours, row.base, row.best = (_entry(pair, row.metric) for pair in (ours, base, best))
    if ours and row.ours and row.ours.p50_ms:
        row.fraction, row.ceiling = ours[1].fraction, ours[1].ceiling
    if ours and base and ours[1].speedup is not None:
        point = ours[1]
        row.speedup, row.speedup_low, row.speedup_high = point.speedup, point.speedup_low, point.speedup_high
        row.verdict, row.processes = point.verdict, min(point.processes, base[1].processes)
    else:
        row.reason = _reason(row.ours, row.base, family)
    return row


def _fastest(pairs: Sequence[tuple[Row, Point]]) -> tuple[Row, Point] | None:
    """Return the fastest of those that are correct, or else the first."""
    return min(pairs, key=lambda it: (it[1].status is not Status.OK, it[1].p50_ms or 0.0), default=None)


def _metric(points: Sequence[Point]) -> str:
    """Return the rate that bounds a kernel, by the first point with a regime."""
    for point in points:
        if point.regime is not None:
            return TFLOP if point.regime is Regime.COMPUTE and point.tflop_per_s is not None else GB
    return GB


def _entry(pair: tuple[Row, Point] | None, metric: str) -> SuiteEntry | None:
    if pair is None:
        return None
    row, point = pair
    entry = SuiteEntry(
        implementation=row.implementation, title=row.title, status=point.status, reason=point.reason
    )
    if point.status is Status.OK:
        entry.p50_ms = point.p50_ms
        entry.rate = point.tflop_per_s if metric == TFLOP else point.gb_per_s
    return entry


def _reason(ours: SuiteEntry | None, base: SuiteEntry | None, family: str) -> str:
    """Return why a row has no speed-up."""
    if ours is None:
        return f"no implementation of the family {family!r} was measured"
    failed = ours if ours.p50_ms is None else base
    if failed is None or failed.status is None:
        return "no baseline passed"
    return f"{failed.title}: {failed.status.label}" + (f", {failed.reason}" if failed.reason else "")


def report_text(report: SuiteReport, width: int = 0) -> str:
    """Return the tables of all devices for a terminal; a row without a speed-up ends with its reason.

    A table that is wider than ``width`` characters, if given, has fewer columns.
    """
    if not report.devices:
        return f"{report.title}: no records. `kbt suite {report.name}` measures it on this machine.\n"
    return "\n".join(_device_text(device, width) for device in report.devices)


def _device_text(device: SuiteDevice, width: int) -> str:
    lines = [[*_texts(row), row.reason] for row in device.rows]
    table = indented_table([[*_COLUMNS, ""], *lines], {1, 2, 3, 5, 6, 7, 9}, 0)
    if width and max(map(len, table.splitlines())) > width:
        narrow = [[*line[:3], row.reason or line[3]] for line, row in zip(lines, device.rows, strict=True)]
        table = indented_table([_NARROW_COLUMNS, *narrow], {1, 2}, width)
    rule = "=" * (width or len(table.partition("\n")[0]))
    return f"{rule}\n {HEADING} · {device.name}\n{rule}\n{table}\n{rule}\n"


def report_markdown(report: SuiteReport) -> str:
    """Return the tables of all devices as Markdown."""
    tables = [
        f"## {device.name}\n\n"
        + markdown_table(
            _COLUMNS, map(_texts, device.rows), [row.reason for row in device.rows], _TEXT_COLUMNS
        )
        for device in report.devices
    ]
    return "\n".join(tables or ["No records.\n"])


def report_csv(report: SuiteReport) -> str:
    """Return the rows of all devices as CSV."""
    return csv_text(
        [*_COLUMNS, *_CSV_COLUMNS],
        (_values(device, row) for device in report.devices for row in device.rows),
    )


def _texts(row: SuiteRow) -> list[str]:
    ours, base, best = (entry or _NO_ENTRY for entry in (row.ours, row.base, row.best))
    return [
        *(row.kernel, milliseconds(ours.p50_ms), milliseconds(base.p50_ms), _speedup(row)),
        *(row.metric, quantity(ours.rate), quantity(base.rate)),
        MISSING if row.fraction is None else f"{row.fraction:.1%} of {row.ceiling}",
        *(best.title or MISSING, milliseconds(best.p50_ms)),
    ]


def _values(device: SuiteDevice, row: SuiteRow) -> list[Value]:
    ours, base, best = (entry or _NO_ENTRY for entry in (row.ours, row.base, row.best))
    return [
        *(row.kernel, ours.p50_ms, base.p50_ms, row.speedup),
        *(row.metric, ours.rate, base.rate, row.fraction, best.title, best.p50_ms),
        *(ours.title, base.title, row.ceiling, device.name, row.operator, row.workload),
        *(ours.status, row.reason),
        *(row.speedup_low, row.speedup_high, "" if row.verdict is Verdict.NONE else row.verdict.value),
        row.processes or None,
    ]


def _speedup(row: SuiteRow) -> str:
    text = speedup_text(row)
    return f"{text} (1 process)" if row.processes == 1 else text or MISSING
