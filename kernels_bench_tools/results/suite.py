"""Suites: workloads of several operators in one table, our implementations beside the baselines and the best others.

A suite is defined by a TOML file, and reported by the cell of a notebook from the summaries of the operators.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from kernels_bench_tools.errors import RecordError, SuiteError
from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.file_io import read_file, read_struct, write_atomically, write_struct
from kernels_bench_tools.records.record import Regime, Status
from kernels_bench_tools.records.summary import DeviceSummary, Summary, Verdict
from kernels_bench_tools.results.combine import read_needs
from kernels_bench_tools.results.export import csv_text, markdown_table
from kernels_bench_tools.text.numbers import MISSING, milliseconds, quantity, times_with_interval
from kernels_bench_tools.text.tables import grouped, table

SUMMARY, REPORT = "summary.json", "suite.json"
NOT_MEASURED = "not measured on this device"
_COLUMNS = (
    *("Kernel", "Our Latency (ms)", "Base Latency (ms)", "Speedup", "Metric", "Our Perf", "Base Perf"),
    *("Of Ceiling", "Best Other", "Best Other (ms)", "Ours", "Base", "Ceiling", "Device", "Operator"),
    *("Workload", "Status", "Reason", "Speedup Low", "Speedup High", "Verdict", "Processes"),
)
"""Columns of the CSV file and keys of a row; tables show the first ten."""
_SHOWN, _LEFT = _COLUMNS[:10], {"Kernel", "Speedup", "Metric", "Best Other", "Note"}

SuiteRow = dict[str, Any]
"""One kernel on one device, by column. Times and rates are those of correct results only."""


class SuiteKernel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    operator: str
    """Folder of the operator."""
    workload: str
    """Name of the workload in the suite's workload set."""


class Suite(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    title: str
    workloads: str
    ours: str
    """Family of the implementations that are compared with the baselines."""
    kernel: list[SuiteKernel]
    small_workloads: str = ""
    """Smaller workload set for CPUs; empty to use ``workloads`` there."""
    small: list[SuiteKernel] = []

    def __post_init__(self) -> None:
        if not self.kernel:
            raise ValueError("it has no [[kernel]]")
        if bool(self.small) != bool(self.small_workloads):
            raise ValueError("small_workloads and [[small]] go together")

    def rows_by_set(self, kind: str) -> list[tuple[str, list[SuiteKernel]]]:
        """Return the workload sets to report for a device kind with their rows, the preferred one first."""
        small = [(self.small_workloads, self.small)] if kind == "cpu" and self.small else []
        return [*small, (self.workloads, self.kernel)]

    @property
    def operators(self) -> list[str]:
        return list(dict.fromkeys(kernel.operator for kernel in [*self.kernel, *self.small]))


class SuiteReport(msgspec.Struct, kw_only=True):
    name: str
    title: str
    rows: list[SuiteRow]
    """By device, in the order of the definition."""


def read_suite(path: Path) -> Suite:
    try:
        return msgspec.toml.decode(read_file(path), type=Suite)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise SuiteError(path.name, what, "The definition of a suite") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SuiteError(path.name, str(error), "The keys that docs/suites.md names") from error


def report_suite(definition: str) -> SuiteReport:
    """Report a suite from the summaries of the combine cells that this cell needs.

    Writes ``report.csv``, ``report.md`` and ``suite.json`` into the working directory, and prints the table of each
    device. ``definition`` is the suite's TOML file, one of the files that this cell needs.
    """
    needs = read_needs("report_suite")
    beside = os.path.normpath(Path(needs.project) / PurePosixPath(needs.notebook).parent / definition)
    suite = read_suite(Path(next((file for file in needs.files if Path(file).name == definition), beside)))
    summaries = []
    for need in needs.cells:
        try:
            summaries.append(read_struct(Path(need.directory) / SUMMARY, Summary))
        except (OSError, msgspec.DecodeError) as error:
            what = need.reason or f"its {SUMMARY} cannot be read: {error}"
            print(f"Skipped: {RecordError(f'{need.notebook}:{need.cell}', what)}")
    report = suite_report(PurePosixPath(definition).stem, suite, summaries)
    write_atomically(Path("report.csv"), report_csv(report).encode())
    write_atomically(Path("report.md"), report_markdown(report).encode())
    write_struct(Path(REPORT), report)
    print(report_text(report))
    return report


def suite_report(name: str, suite: Suite, summaries: Iterable[Summary]) -> SuiteReport:
    """Return the suite's rows on each device that has a record of it, in the order of the summaries' devices."""
    by_operator = {summary.operator: summary for summary in summaries}
    views: dict[str, dict[tuple[str, str], DeviceSummary]] = {}
    for operator in suite.operators:
        for view in by_operator[operator].devices if operator in by_operator else ():
            sets = {workload_set for workload_set, _ in suite.rows_by_set(view.device.kind)}
            for workload in view.workloads:
                if workload.set in sets and not workload.mode:
                    views.setdefault(view.device.slug, {})[operator, workload.name] = view
    rows = [row for on_device in views.values() for row in _device_rows(suite, on_device)]
    return SuiteReport(name=name, title=suite.title, rows=rows)


def _device_rows(suite: Suite, views: dict[tuple[str, str], DeviceSummary]) -> Iterator[SuiteRow]:
    """Yield the rows of a device, given the view of each operator's workload."""
    device = next(iter(views.values())).device
    for number, (_, kernels) in enumerate(suite.rows_by_set(device.kind)):
        # A set for other devices is listed where it has been measured.
        if number == 0 or any((kernel.operator, kernel.workload) in views for kernel in kernels):
            for kernel in kernels:
                view = views.get((kernel.operator, kernel.workload))
                figures = _figures(suite.ours, kernel.workload, view) if view else {"Reason": NOT_MEASURED}
                about = {"Kernel": kernel.name, "Device": device.name, "Operator": kernel.operator}
                about |= {"Workload": kernel.workload, "Metric": "GB/s"}
                yield dict.fromkeys(_COLUMNS) | about | figures


def _figures(family: str, workload: str, view: DeviceSummary) -> SuiteRow:
    """Return the fastest correct implementations of the family, and of the others, beside the baseline."""
    number = [it.name for it in view.workloads].index(workload)
    # The fastest of those that are correct, or else the first.
    measured = sorted(
        ((row, row.points[number]) for row in view.rows),
        key=lambda it: (it[1].status is not Status.OK, it[1].p50_ms or 0.0),
    )
    ours = next((pair for pair in measured if pair[0].family == family), None)
    base = next((pair for pair in measured if pair[0].implementation == view.baseline), None)
    best = next((pair for pair in measured if pair[0].family != family and pair[1].status is Status.OK), None)
    bound = next((point for _, point in filter(None, (ours, base, best)) if point.regime is not None), None)
    in_flops = bool(bound and bound.regime is Regime.COMPUTE and bound.tflop_per_s is not None)
    figures: SuiteRow = {"Metric": "TFLOP/s" if in_flops else "GB/s"}
    for side, title, pair in (("Our", "Ours", ours), ("Base", "Base", base)):
        figures[title] = pair and pair[0].title
        if pair and pair[1].status is Status.OK:
            figures[f"{side} Latency (ms)"] = pair[1].p50_ms
            figures[f"{side} Perf"] = pair[1].tflop_per_s if in_flops else pair[1].gb_per_s
    if best:
        figures |= {"Best Other": best[0].title, "Best Other (ms)": best[1].p50_ms}
    if ours is None:
        return {**figures, "Reason": f"no implementation of the family {family!r} was measured"}
    point = ours[1]
    figures["Status"] = point.status
    if point.status is Status.OK:
        figures |= {"Of Ceiling": point.fraction, "Ceiling": point.ceiling}
    if base and point.speedup is not None:
        figures |= {"Speedup": point.speedup, "Speedup Low": point.speedup_low}
        figures |= {"Speedup High": point.speedup_high, "Processes": min(point.processes, base[1].processes)}
        return figures | {"Verdict": None if point.verdict is Verdict.NONE else point.verdict}
    failed = base if point.status is Status.OK else ours
    why = f", {failed[1].reason}" if failed and failed[1].reason else ""
    reason = f"{failed[0].title}: {failed[1].status.label}{why}" if failed else "no baseline passed"
    return {**figures, "Reason": reason}


def _texts(it: SuiteRow) -> list[str]:
    """Return a line of a table; the reason comes last."""
    speedup = fraction = MISSING
    if it["Speedup"] is not None:
        speedup = times_with_interval(Estimate.of(it["Speedup"], it["Speedup Low"], it["Speedup High"]))
        label = Verdict(it["Verdict"] or "none").label
        speedup += f" {label}{' (1 process)' if it['Processes'] == 1 else ''}"
    if it["Of Ceiling"] is not None:
        fraction = f"{it['Of Ceiling']:.1%} of {it['Ceiling']}"
    return [
        *(it["Kernel"], milliseconds(it["Our Latency (ms)"]), milliseconds(it["Base Latency (ms)"])),
        *(speedup, it["Metric"], quantity(it["Our Perf"]), quantity(it["Base Perf"]), fraction),
        *(it["Best Other"] or MISSING, milliseconds(it["Best Other (ms)"]), it["Reason"] or ""),
    ]


def _by_device(report: SuiteReport) -> dict[str, list[list[str]]]:
    return grouped((str(row["Device"]), _texts(row)) for row in report.rows)


def report_text(report: SuiteReport, width: int = 0) -> str:
    """Return the tables of all devices for a terminal.

    A table that is wider than ``width`` characters, if given, has fewer columns.
    """
    if not report.rows:
        return f"{report.title}: no records. `kbt suite {report.name}` measures it on this machine.\n"
    right = {at for at, title in enumerate(_SHOWN) if title not in _LEFT}
    blocks = []
    for device, lines in _by_device(report).items():
        text = table([[*_SHOWN, ""], *lines], right, width, optional=(*range(9, 3, -1), 3))
        rule = "=" * (width or len(text.partition("\n")[0]))
        blocks.append(f"{rule}\n FINAL BENCHMARK REPORT · {device}\n{rule}\n{text}\n{rule}\n")
    return "\n".join(blocks)


def report_markdown(report: SuiteReport) -> str:
    tables = (
        f"## {device}\n\n{markdown_table([*_SHOWN, 'Note'], lines, _LEFT)}"
        for device, lines in _by_device(report).items()
    )
    return "\n".join(tables) or "No records.\n"


def report_csv(report: SuiteReport) -> str:
    return csv_text(_COLUMNS, ([row[name] for name in _COLUMNS] for row in report.rows))
