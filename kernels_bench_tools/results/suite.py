"""Suites: workloads of several operators in one table, our implementations beside the baselines and the best others.

A suite is defined by a TOML file, and reported by the cell of a notebook from the summaries of the operators.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from kernels_bench_tools.errors import RecordError, SuiteError
from kernels_bench_tools.file_io import read_file, read_struct, write_atomically, write_struct
from kernels_bench_tools.records.record import Regime, Status
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Summary, Verdict
from kernels_bench_tools.results.combine import read_needs
from kernels_bench_tools.results.export import csv_text, markdown_table
from kernels_bench_tools.results.metrics import speedup_with_interval
from kernels_bench_tools.text import MISSING, grouped, milliseconds, quantity, table

SUMMARY, REPORT = "summary.json", "suite.json"
GB, TFLOP = "GB/s", "TFLOP/s"
NOT_MEASURED = "not measured on this device"
HEADING = "FINAL BENCHMARK REPORT"


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
        rows = [(self.workloads, self.kernel)]
        if kind == "cpu" and self.small:
            return [(self.small_workloads, self.small), *rows]
        return rows

    @property
    def operators(self) -> list[str]:
        return list(dict.fromkeys(kernel.operator for kernel in [*self.kernel, *self.small]))


def read_suite(path: Path) -> Suite:
    try:
        return msgspec.toml.decode(read_file(path), type=Suite)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise SuiteError(path.name, what, "The definition of a suite") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SuiteError(path.name, str(error), "The keys that docs/suites.md names") from error


class SuiteRow(msgspec.Struct, kw_only=True):
    """One kernel on one device. Times and rates are those of correct results only."""

    device: str
    slug: str
    kernel: str
    operator: str
    workload: str
    ours: str = ""
    """Title of the fastest correct implementation of the suite's family."""
    ours_ms: float | None = None
    ours_rate: float | None = None
    base: str = ""
    base_ms: float | None = None
    base_rate: float | None = None
    best: str = ""
    """Title of the fastest correct one of the others; it may be the baseline."""
    best_ms: float | None = None
    metric: str = GB
    """``GB/s`` or ``TFLOP/s``, whichever limits the kernel."""
    fraction: float | None = None
    """Our rate divided by the measured peak that ``ceiling`` names."""
    ceiling: str = ""
    speedup: float | None = None
    """Baseline time divided by ours, with its interval and verdict as on the operator's page."""
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: Verdict = Verdict.NONE
    processes: int = 0
    """In how many processes ours was measured, or the baseline if those are fewer; 0 without a speed-up."""
    status: Status | None = None
    reason: str = ""
    """Why there is no speed-up."""


class SuiteReport(msgspec.Struct, kw_only=True):
    """A suite on every device with records of it."""

    name: str
    title: str
    rows: list[SuiteRow]
    """By device, in the order of the definition."""


_COLUMNS = {
    "Kernel": "kernel",
    "Our Latency (ms)": "ours_ms",
    "Base Latency (ms)": "base_ms",
    "Speedup": "speedup",
    "Metric": "metric",
    "Our Perf": "ours_rate",
    "Base Perf": "base_rate",
    "Of Ceiling": "fraction",
    "Best Other": "best",
    "Best Other (ms)": "best_ms",
    **{
        name.title(): name for name in ("ours", "base", "ceiling", "device", "operator", "workload", "status")
    },
    "Reason": "reason",
    "Speedup Low": "speedup_low",
    "Speedup High": "speedup_high",
    "Verdict": "verdict",
    "Processes": "processes",
}
"""Columns of the CSV file, with their fields; tables show the first ten."""
_SHOWN = [*_COLUMNS][:10]
_LEFT = {"Kernel", "Speedup", "Metric", "Best Other", ""}


def _texts(row: SuiteRow) -> list[str]:
    """Return a line of a table; the reason comes last."""
    speedup = fraction = MISSING
    if row.speedup is not None:
        speedup = speedup_with_interval(row.speedup, row.speedup_low, row.speedup_high)
        speedup += f" {row.verdict.label}{' (1 process)' if row.processes == 1 else ''}"
    if row.fraction is not None:
        fraction = f"{row.fraction:.1%} of {row.ceiling}"
    return [
        *(row.kernel, milliseconds(row.ours_ms), milliseconds(row.base_ms), speedup, row.metric),
        *(quantity(row.ours_rate), quantity(row.base_rate), fraction, row.best or MISSING),
        *(milliseconds(row.best_ms), row.reason),
    ]


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
    known = {summary.operator: summary for summary in summaries}
    views: dict[str, dict[tuple[str, str], DeviceSummary]] = {}
    for operator in suite.operators:
        for view in known[operator].devices if operator in known else ():
            sets = {found for found, _ in suite.rows_by_set(view.device.kind)}
            for workload in view.workloads:
                if workload.set in sets and not workload.mode:
                    views.setdefault(view.device.slug, {})[operator, workload.name] = view
    rows = [row for places in views.values() for row in _device_rows(suite, places)]
    return SuiteReport(name=name, title=suite.title, rows=rows)


def _device_rows(suite: Suite, views: dict[tuple[str, str], DeviceSummary]) -> Iterator[SuiteRow]:
    """Yield the rows of a device, given the view of each operator's workload."""
    device = next(iter(views.values())).device
    for number, (_, kernels) in enumerate(suite.rows_by_set(device.kind)):
        # A set for other devices is listed where it has been measured.
        if number == 0 or any((kernel.operator, kernel.workload) in views for kernel in kernels):
            for kernel in kernels:
                row = SuiteRow(
                    device=device.name,
                    slug=device.slug,
                    kernel=kernel.name,
                    operator=kernel.operator,
                    workload=kernel.workload,
                    reason=NOT_MEASURED,
                )
                if view := views.get((kernel.operator, kernel.workload)):
                    _fill(row, suite.ours, view)
                yield row


def _fill(row: SuiteRow, family: str, view: DeviceSummary) -> None:
    index = [workload.name for workload in view.workloads].index(row.workload)
    # The fastest of those that are correct, or else the first.
    measured = sorted(
        ((each, each.points[index]) for each in view.rows),
        key=lambda it: (it[1].status is not Status.OK, it[1].p50_ms or 0.0),
    )
    ours = next((pair for pair in measured if pair[0].family == family), None)
    base = next((pair for pair in measured if pair[0].implementation == view.baseline), None)
    best = next((pair for pair in measured if pair[0].family != family and pair[1].status is Status.OK), None)
    bound = next((point for _, point in filter(None, (ours, base, best)) if point.regime is not None), None)
    if bound and bound.regime is Regime.COMPUTE and bound.tflop_per_s is not None:
        row.metric = TFLOP

    def figures(pair: tuple[Row, Point] | None) -> tuple[str, float | None, float | None]:
        if pair is None or pair[1].status is not Status.OK:
            return pair[0].title if pair else "", None, None
        rate = pair[1].tflop_per_s if row.metric == TFLOP else pair[1].gb_per_s
        return pair[0].title, pair[1].p50_ms, rate

    row.ours, row.ours_ms, row.ours_rate = figures(ours)
    row.base, row.base_ms, row.base_rate = figures(base)
    row.best, row.best_ms, _ = figures(best)
    if ours is None:
        row.reason = f"no implementation of the family {family!r} was measured"
        return
    point = ours[1]
    row.status = point.status
    if row.ours_ms:
        row.fraction, row.ceiling = point.fraction, point.ceiling
    row.reason = ""
    if base and point.speedup is not None:
        row.speedup, row.speedup_low, row.speedup_high = point.speedup, point.speedup_low, point.speedup_high
        row.verdict, row.processes = point.verdict, min(point.processes, base[1].processes)
    elif failed := ours if row.ours_ms is None else base:
        why = f", {failed[1].reason}" if failed[1].reason else ""
        row.reason = f"{failed[0].title}: {failed[1].status.label}{why}"
    else:
        row.reason = "no baseline passed"


def _by_device(report: SuiteReport) -> list[tuple[str, list[SuiteRow]]]:
    found = grouped((row.slug, row) for row in report.rows)
    return [(rows[0].device, rows) for rows in found.values()]


def report_text(report: SuiteReport, width: int = 0) -> str:
    """Return the tables of all devices for a terminal.

    A table that is wider than ``width`` characters, if given, has fewer columns.
    """
    if not report.rows:
        return f"{report.title}: no records. `kbt suite {report.name}` measures it on this machine.\n"
    blocks = []
    for device, rows in _by_device(report):
        right = {at for at, title in enumerate(_SHOWN) if title not in _LEFT}
        made = table([[*_SHOWN, ""], *map(_texts, rows)], right, width, optional=(*range(9, 3, -1), 3))
        rule = "=" * (width or len(made.partition("\n")[0]))
        blocks.append(f"{rule}\n {HEADING} · {device}\n{rule}\n{made}\n{rule}\n")
    return "\n".join(blocks)


def report_markdown(report: SuiteReport) -> str:
    return (
        "\n".join(
            f"## {device}\n\n" + markdown_table([*_SHOWN, "Note"], map(_texts, rows), _LEFT | {"Note"})
            for device, rows in _by_device(report)
        )
        or "No records.\n"
    )


def report_csv(report: SuiteReport) -> str:
    values = ([getattr(row, name) for name in _COLUMNS.values()] for row in report.rows)
    unknown = {Verdict.NONE, 0}
    return csv_text([*_COLUMNS], ([None if each in unknown else each for each in line] for line in values))
