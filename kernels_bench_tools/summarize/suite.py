"""Suites: rows of several operators brought together, ours beside the baseline's and beside the best of the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.schema.build import Needs
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Regime, Status
from kernels_bench_tools.schema.suite import (
    Suite,
    SuiteDevice,
    SuiteEntry,
    SuiteKernel,
    SuiteReport,
    SuiteRow,
    read_suite,
)
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row, Summary
from kernels_bench_tools.summarize.needs import read_needs
from kernels_bench_tools.summarize.published import published_csv, published_markdown
from kernels_bench_tools.summarize.suite_tables import report_csv, report_markdown, report_text

SUMMARY = "summary.json"
GB, TFLOP = "GB/s", "TFLOP/s"
_Views: TypeAlias = dict[tuple[str, str], DeviceSummary]
"""By operator and workload."""
NOT_TRIED = "not measured on this device"


def report_suite(definition: str) -> SuiteReport:
    """Report a suite from the summaries of the combine cells that this cell needs.

    Writes ``report.csv``, ``report.md`` and ``suite.json`` into the working directory, and ``published.csv`` and
    ``published.md`` where the suite holds published figures; prints the table of each device.

    Args:
        definition: The suite's TOML file, one of the files that this cell needs.

    Raises:
        KbtError: The cell was not started by ``kbt``, does not need the file, or the file defines no suite.
    """
    needs = read_needs("report_suite")
    suite = read_suite(_definition(needs, definition))
    report = suite_report(PurePosixPath(definition).stem, suite, _summaries(needs))
    Path("report.csv").write_text(report_csv(report), encoding="utf-8", newline="")
    Path("report.md").write_text(report_markdown(report), encoding="utf-8", newline="")
    if suite.published:
        Path("published.csv").write_text(published_csv(suite, report), encoding="utf-8", newline="")
        Path("published.md").write_text(published_markdown(suite, report), encoding="utf-8", newline="")
    write_struct(Path("suite.json"), report)
    print(report_text(report))
    return report


def suite_report(name: str, suite: Suite, summaries: Iterable[Summary]) -> SuiteReport:
    """Return the suite's rows on each device that has a record of it, in the order of the summaries' devices.

    Args:
        name: Of the suite.
        suite: Its definition.
        summaries: Of the operators; those that it does not name are left alone.
    """
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
        # What a device is not meant for is shown where somebody has tried it.
        if number == 0 or any((kernel.operator, kernel.workload) in views for kernel in kernels):
            rows += [
                _row(kernel, suite.ours, views.get((kernel.operator, kernel.workload))) for kernel in kernels
            ]
    return SuiteDevice(name=device.name, slug=device.slug, rows=rows)


def _row(kernel: SuiteKernel, family: str, view: DeviceSummary | None) -> SuiteRow:
    row = SuiteRow(kernel=kernel.name, operator=kernel.operator, workload=kernel.workload, metric=GB)
    if view is None:
        row.reason = NOT_TRIED
        return row
    index = [workload.name for workload in view.workloads].index(kernel.workload)
    tried = [(one, one.points[index]) for one in view.rows]
    mine = _first([pair for pair in tried if pair[0].family == family])
    base = next((pair for pair in tried if pair[0].implementation == view.baseline), None)
    best = _first([pair for pair in tried if pair[0].family != family and pair[1].status is Status.OK])
    row.metric = _metric([pair[1] for pair in (mine, base, best) if pair])
    row.ours, row.base, row.best = (_entry(pair, row.metric) for pair in (mine, base, best))
    if mine and row.ours and row.ours.p50_ms:
        row.fraction, row.ceiling = mine[1].fraction, mine[1].ceiling
    if row.ours and row.ours.p50_ms and row.base and row.base.p50_ms:
        row.speedup = row.base.p50_ms / row.ours.p50_ms
    else:
        row.reason = _reason(row.ours, row.base, family)
    return row


def _first(pairs: Sequence[tuple[Row, Point]]) -> tuple[Row, Point] | None:
    """Return the fastest of those that are correct, or else the first."""
    return min(
        pairs,
        key=lambda pair: (pair[1].status is not Status.OK, pair[1].p50_ms or 0.0),
        default=None,
    )


def _metric(points: Sequence[Point]) -> str:
    """Return what bounds a kernel, by the first point that says so."""
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
    """Return why a row compares nothing."""
    if ours is None:
        return f"no implementation of the family {family!r} was tried here"
    told = ours if ours.p50_ms is None else base
    if told is None:
        return "no baseline passed here"
    assert told.status is not None
    return f"{told.title}: {told.status.value}" + (f", {told.reason}" if told.reason else "")


def _definition(needs: Needs, definition: str) -> Path:
    for file in needs.files:
        if Path(file).name == definition:
            return Path(file)
    return Path(os.path.normpath(Path(needs.project) / PurePosixPath(needs.notebook).parent / definition))


def _summaries(needs: Needs) -> list[Summary]:
    """Return the summaries of the needed cells; one that cannot be read is told in a line."""
    found = []
    for need in needs.cells:
        path = Path(need.directory) / SUMMARY
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Summary))
        except (OSError, msgspec.DecodeError) as error:
            what = need.reason or f"its {SUMMARY} cannot be read: {error}"
            print(f"Skipped: {RecordError(f'{need.notebook}:{need.cell}', what)}")
    return found
