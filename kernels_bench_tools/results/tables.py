"""What tables show: views and rows, typical times, flags and origins, failures by reason, and what only records have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import log2
from statistics import median

from kernels_bench_tools.estimate import Estimate, geometric_mean_interval
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import CONFIGS, model_files
from kernels_bench_tools.records.record import Environment, FirstCall, Flag, Record, Status
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    DeviceSummary,
    Point,
    Result,
    Row,
    Summary,
    Verdict,
    WorkloadSummary,
    results_of,
)
from kernels_bench_tools.text.numbers import size
from kernels_bench_tools.text.tables import grouped

ViewRow = tuple[DeviceSummary, Row]


@dataclass(frozen=True)
class DeviceResults:
    """A device with all of its views, in their order."""

    device: Device
    views: Sequence[DeviceSummary]

    @property
    def leading(self) -> list[DeviceSummary]:
        """The first view of each of the operator's functions."""
        first: dict[str, DeviceSummary] = {}
        for view in self.views:
            first.setdefault(function_of(view), view)
        return list(first.values())

    @property
    def rows(self) -> list[Row]:
        return [row for view in self.views for row in view.rows]


def by_device(summaries: Iterable[DeviceSummary]) -> list[DeviceResults]:
    views_of = grouped((summary.device.slug, summary) for summary in summaries)
    return [DeviceResults(views[0].device, views) for views in views_of.values()]


def rows_by_device(rows: Iterable[ViewRow]) -> list[tuple[Device, list[ViewRow]]]:
    rows_of = grouped((view.device.slug, (view, row)) for view, row in rows)
    return [(pairs[0][0].device, pairs) for pairs in rows_of.values()]


def function_of(view: DeviceSummary) -> str:
    """Return the operator's function that a view measures; empty where there is only one."""
    return next((workload.group for workload in view.workloads if workload.group), "")


_MODELS = frozenset(model_files(CONFIGS))


def kind_of(view: DeviceSummary) -> str:
    """Return which kind of results a view has, one of ``KINDS`` in ``report/paths.py``."""
    if any(workload.mode for workload in view.workloads):
        return "backward"
    return "models" if any(workload.set in _MODELS for workload in view.workloads) else ""


def view_slug(view: DeviceSummary) -> str:
    """Return the anchor of a view: the device's slug, then the view's key if it has one."""
    return "-".join(filter(None, [view.device.slug, view.key]))


def view_title(view: DeviceSummary) -> str:
    """Return the name of a view among those of its device; the names of its workload sets if it has none."""
    sets = dict.fromkeys(workload.set for workload in view.workloads if workload.set)
    return view.view or ", ".join(sets) or "all workloads"


def fastest(view: DeviceSummary) -> Row | None:
    return next((row for row in view.rows if row.rank == 1), None)


def ranked_rows(view: DeviceSummary) -> int:
    return sum(row.rank is not None for row in view.rows)


def baseline_title(view: DeviceSummary) -> str:
    """Return the title of the baseline, or its id if the view has no row of it; empty if there is none."""
    return next((row.title for row in view.rows if row.implementation == view.baseline), view.baseline)


def measured_rows(view: DeviceSummary) -> list[Row]:
    return [row for row in view.rows if any(point.p50_ms is not None for point in row.points)]


def points_by_workload(
    view: DeviceSummary,
) -> Iterator[tuple[WorkloadSummary, list[Point | None], float | None]]:
    """Yield for each workload the points of :func:`measured_rows`, and the fastest correct time of them in ms."""
    rows = [{point.workload: point for point in row.points} for row in measured_rows(view)]
    for workload in view.workloads:
        points = [of_row.get(workload.name) for of_row in rows]
        times = [point.p50_ms for point in points if point and point.p50_ms and point.status.passed]
        yield workload, points, min(times, default=None)


def ratio_place(ratio: float) -> float:
    """Return where a ratio is between 1/4 and 4 on a logarithmic scale, in percent: 50 is 1, and others are at the ends."""
    return round(50 + 25 * max(-2.0, min(2.0, log2(ratio))), 1)


def typical(row: Row, name: str = "p50_ms") -> Estimate | None:
    """Return the geometric mean of a time over all workloads in ms, and its interval.

    ``name`` is the metric's. None unless the row passed every workload, and has the time on each.
    """
    if row.passed < row.total:
        return None
    times = []
    for point in row.points:
        if not (time := point.estimate(name)) or not time.value:
            return None
        times.append(time)
    return geometric_mean_interval(times) if times else None


def verdict_counts(row: Row) -> list[tuple[int, Verdict]]:
    """Return how often each verdict occurs over the row's workloads, most frequent first; see :func:`too_few`."""
    without = {Verdict.NONE, Verdict.FEW_PROCESSES}
    counts = Counter(point.verdict for point in row.points if point.verdict not in without)
    return [(count, verdict) for verdict, count in counts.most_common()]


def speedup_bars(view: DeviceSummary) -> dict[str, int]:
    speedups = {row.implementation: row.speedup for row in view.rows if row.rank is not None and row.speedup}
    longest = max(speedups.values(), default=1.0)
    return {name: max(1, round(100 * speedup / longest)) for name, speedup in speedups.items()}


def families(rows: Iterable[Row]) -> list[str]:
    names = sorted({row.family for row in rows}, key=lambda family: (not family, family))
    return [family or "other" for family in names]


def statuses(rows: Iterable[Row]) -> list[Status]:
    return sorted({row.status for row in rows}, key=lambda status: status.place)


def charts(views: Iterable[DeviceSummary]) -> dict[str, tuple[str, str]]:
    """Return title and description of each chart by its name."""
    texts: dict[str, dict[str, str]] = {}
    for metric in (metric for view in views for metric in view.metrics if metric.chart):
        texts.setdefault(metric.chart, {})[metric.title] = metric.description
    return {chart: (" or ".join(titles), " ".join(titles.values())) for chart, titles in texts.items()}


def row_flags(row: Row) -> Mapping[Flag, list[str]]:
    return grouped((flag, point.workload) for point in row.points for flag in point.flags)


def limitations(row: Row) -> dict[str, list[str]]:
    return grouped((point.limitation, point.workload) for point in row.points if point.limitation)


def all_flags(rows: Iterable[Row]) -> list[Flag]:
    flags = {flag for row in rows for point in row.points for flag in point.flags}
    return sorted(flags, key=lambda flag: flag.place)


def highest_fraction(row: Row) -> Point | None:
    """Return the point nearest to its measured peak; None if none has one."""
    points = [point for point in row.points if point.fraction is not None]
    return max(points, key=lambda point: point.fraction or 0.0, default=None)


def largest(row: Row, name: str) -> float | None:
    values = [point.value(name) for point in row.points]
    return max((value for value in values if value is not None), default=None)


def process_count(points: Iterable[Point]) -> str:
    """Return in how many processes points were measured: ``"3 processes"``; empty if nothing was."""
    counts = sorted({point.processes for point in points if point.p50_ms is not None})
    if not counts:
        return ""
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{number} process{'es' if counts[-1] != 1 else ''}"


def too_few(points: Iterable[Point]) -> str:
    """Return in how many processes points were measured if that is too few for a verdict: ``"1 process: no verdict"``.

    A baseline is compared with nothing, so only its number of processes is returned.
    """
    timed = [point for point in points if point.p50_ms is not None]
    without = any(point.verdict is Verdict.FEW_PROCESSES for point in timed)
    if not any(point.processes < FEWEST_PROCESSES for point in timed):
        return "too few processes of the baseline: no verdict" if without else ""
    return f"{process_count(timed)}{': no verdict' if without else ''}"


def headline_objection(view: DeviceSummary) -> str:
    """Return why the speed-up of the fastest row is no headline figure, as printed; empty if it is one."""
    rows = [row for row in view.rows if row.rank == 1 or row.implementation == view.baseline]
    measured = [point for row in rows for point in row.points if point.p50_ms is not None]
    fewest = min(measured, key=lambda point: point.processes, default=None)
    if fewest is not None and fewest.processes < FEWEST_PROCESSES:
        return f"measured in {process_count([fewest])}"
    separate = any(point.verdict is Verdict.SEPARATE for row in rows for point in row.points)
    # Without an interval it is not known by how much the device's speed may have differed.
    known = all(row.speedup_low is not None for row in rows if row.implementation != view.baseline)
    return Verdict.SEPARATE.label if separate and not known else ""


@dataclass(frozen=True)
class Origin:
    device: Device
    measured: str
    """Days of measurement, as printed; empty if not recorded."""
    software: str
    """Driver and versions, as printed."""
    commits: list[tuple[str, str]]
    """Commit, and ``with uncommitted changes`` or nothing."""


def origins(rows: Iterable[ViewRow]) -> list[Origin]:
    """Return the origin of rows, one for each device in the order of the rows."""
    return [_origin(device, [row for _, row in pairs]) for device, pairs in rows_by_device(rows)]


def view_origins(views: Iterable[DeviceSummary]) -> list[Origin]:
    return origins((view, row) for view in views for row in view.rows)


def day(timestamp: str) -> str:
    """Return the day of a timestamp, UTC; empty for none.

    >>> day("2026-11-20T23:50:09.350+00:00")
    '2026-11-20'
    """
    return timestamp[:10]


def measured_days(rows: Iterable[Row]) -> str:
    """Return the first and last day on which rows were measured: ``2026-11-18 to 2026-11-20``; empty for none."""
    days = sorted({day(point.measured) for row in rows for point in row.points if point.measured})
    return " to ".join(dict.fromkeys(days[:1] + days[-1:]))


def latest(views: Iterable[DeviceSummary]) -> str:
    return max((point.measured for view in views for row in view.rows for point in row.points), default="")


def _origin(device: Device, rows: Sequence[Row]) -> Origin:
    def versions(title: str, field: str) -> str:
        known = sorted({getattr(row.environment, field) for row in rows} - {""})
        return f"{title} {', '.join(known)}" if known else ""

    software = [
        f"driver {device.driver}" if device.driver else versions("driver", "driver"),
        versions("CUDA", "cuda"),
        *(versions(library, library) for library in ("torch", "triton", "kernels")),
    ]
    commits = {
        (row.provenance.commit, "with uncommitted changes" if row.provenance.dirty else "")
        for row in rows
        if row.provenance.commit
    }
    return Origin(device, measured_days(rows), " · ".join(filter(None, software)), sorted(commits))


def environment_row(rows: Sequence[Row]) -> Row:
    return next((row for row in rows if any(point.status.ran for point in row.points)), rows[0])


def measured_peaks(views: Iterable[DeviceSummary]) -> list[tuple[str, float, float, float]]:
    rates = grouped(peak for view in views for peak in view.ceilings.items())
    return [(name, median(of_peak), min(of_peak), max(of_peak)) for name, of_peak in sorted(rates.items())]


def environment_facts(device: Device, environments: Iterable[Environment]) -> list[tuple[str, str]]:
    """Return what is known of environments of a device: every value, each once."""
    facts = [
        {
            "Driver": env.driver or device.driver,
            "CUDA": env.cuda,
            "Compute capability": env.sm,
            "L2 cache": size(env.l2_bytes) if env.l2_bytes else "",
            "SM clock": f"{env.sm_clock_mhz} MHz" if env.sm_clock_mhz else "",
            "Memory clock": f"{env.memory_clock_mhz} MHz" if env.memory_clock_mhz else "",
            "CPU": env.cpu,
            "Threads": str(env.threads or ""),
            "torch": env.torch,
            "triton": env.triton,
            "kernels": env.kernels,
            "Python": env.py,
            "Platform": env.plat,
        }
        for env in environments
    ]
    values = grouped((name, value) for of_one in facts for name, value in of_one.items() if value)
    return [
        (name, "; ".join(sorted({*known}, key=lambda it: (len(it), it)))) for name, known in values.items()
    ]


@dataclass(frozen=True)
class Details:
    first_calls: dict[str, FirstCall] = field(default_factory=dict)
    """First calls by workload, each of the process whose first call took the median time."""
    conditions: Sequence[tuple[str, str]] = ()
    """Clocks, power, temperature and sentinels, as name and text."""


def _span(values: Iterable[float], unit: str) -> str:
    known = [value for value in values if value]
    return f"{' to '.join(dict.fromkeys(f'{value:.4g}' for value in (min(known), max(known))))} {unit}"


def details_of(records: Iterable[Record]) -> Details:
    """Return what the records of an implementation on a device tell besides its results."""
    records = [record for record in records if record.lat_ms is not None]
    calls = grouped((record.workload, record.first_call) for record in records if record.first_call)
    first = {
        workload: sorted(of_workload, key=lambda call: call.first_ms or 0.0)[len(of_workload) // 2]
        for workload, of_workload in calls.items()
    }
    clocks = [record.clocks for record in records if record.clocks is not None]
    readings: list[tuple[str, str, Sequence[float]]] = [
        ("SM clock", "MHz", [it.sm_mhz for it in clocks]),
        ("SM clock, lowest sample", "MHz", [it.sm_mhz_min for it in clocks]),
        ("SM clock, in the stream", "MHz", [it.in_band_mhz for it in clocks]),
        ("Memory clock", "MHz", [it.memory_mhz for it in clocks]),
        ("Power, highest", "W", [it.power_w for it in clocks]),
        ("Temperature", "°C", [it.temperature_c for it in clocks]),
    ]
    conditions = [(name, _span(values, unit)) for name, unit, values in readings if any(values)]
    if clocks:
        reasons = sorted({reason for it in clocks for reason in it.throttle})
        conditions.append(("Throttled by", ", ".join(reasons) or "nothing"))
        conditions.append(("Other processes", str(max(it.other_processes for it in clocks) or "none")))
    sentinels = grouped((name, ms) for record in records for name, ms in record.sentinels.items())
    times = {name: [*chain.from_iterable(of_process)] for name, of_process in sentinels.items()}
    conditions += [(f"Sentinel {name}", _span(ms, "ms")) for name, ms in times.items() if any(ms)]
    return Details(first_calls=first, conditions=conditions)


_NUMBER = re.compile(r"-?\d[\d.,]*")
_CODE = re.compile(r"\[[a-z][a-z-]+\]$")
"""The code at the end of some reasons: ``[hub-unreachable]``."""
_WHERE = re.compile(r"; this machine has .*| \(process(es)? [^)]*\)")
"""Where it failed, which is no other cause."""
_COMPARED = 120
"""Characters of a reason that are compared; later ones are details such as shapes."""


@dataclass(frozen=True)
class FailureGroup:
    status: Status
    reason: str
    """The most frequent wording; empty if none was recorded."""
    variants: int
    """Number of other wordings, such as with other numbers."""
    rows: Sequence[Sequence[Result]]
    """The failures by operator, implementation and device."""

    @property
    def workloads(self) -> int:
        return sum(map(len, self.rows))


def failure_groups(summaries: Iterable[Summary]) -> list[FailureGroup]:
    """Return the failures by reason: those of implementations before those of the machine, the most frequent first.

    Equal reasons share their code, or their beginning without its numbers.
    """

    def key(failure: Result) -> tuple[Status, str]:
        code = _CODE.search(failure.reason)
        alike = code[0] if code else _NUMBER.sub("#", _WHERE.sub("", failure.reason))[:_COMPARED]
        return failure.point.status, alike

    def order(item: tuple[tuple[Status, str], list[Result]]) -> tuple[bool, int, int, str]:
        (status, kind), alike = item
        return not status.failed, status.place, -len(alike), kind

    groups = []
    failures = grouped((key(it), it) for it in results_of(summaries) if not it.point.status.passed)
    for (status, _), alike in sorted(failures.items(), key=order):
        reasons = Counter(failure.reason for failure in alike)
        rows = grouped(((it.operator, it.row.implementation, it.view.device.slug), it) for it in alike)
        reason = reasons.most_common(1)[0][0]
        groups.append(FailureGroup(status, reason, len(reasons) - 1, list(rows.values())))
    return groups
