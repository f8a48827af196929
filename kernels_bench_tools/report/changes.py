"""Changes since an earlier report, read from its ``report.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    SMALLEST_EFFECT,
    DeviceSummary,
    Point,
    Report,
    Row,
    geometric_mean,
)
from kernels_bench_tools.report.labels import Label
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.rows import day, view_title
from kernels_bench_tools.text import times

MAX_SHOWN = 12

_Points: TypeAlias = Mapping[tuple[str, str, str, str], Point]
"""By operator, slug of the device, implementation and workload."""


class ChangeKind(Enum):
    """What changed about a row, the most important first."""

    FAILS = Label("✗", "fails now", "bad")
    SLOWER = Label("▼", "slower", "bad")
    FASTER = Label("▲", "faster", "good")
    PASSES = Label("✓", "passes now", "good")
    NEW = Label("+", "new", "good")
    GONE = Label("−", "gone", "muted")


@dataclass(frozen=True)
class Change:
    """A row that changed."""

    kind: ChangeKind
    title: str
    """The implementation's."""
    url: str
    """Empty if it has no page."""
    place: str
    """Operator, device and view."""
    place_url: str
    detail: str = ""


@dataclass(frozen=True)
class ReportChanges:
    """The changes on the front page."""

    since: str
    """Day of the earlier report's most recent record; empty if it had none."""
    shown: Sequence[Change]
    more: int


def read_report(path: Path) -> Report:
    """Return the report in a ``report.json`` of an earlier build.

    Raises:
        ProjectError: It cannot be read, or has another format.
    """
    try:
        return msgspec.json.decode(read_file(path), type=Report)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except msgspec.DecodeError as error:
        what = f"is not a report that this version can read: {error}"
    raise ProjectError(str(path), what, "The report.json of an earlier build")


def changes_since(previous: Report, operators: Sequence[OperatorReport], page: Page) -> ReportChanges:
    """Return how the operators' rows differ from those of an earlier report."""
    before = _points((one.operator, one.devices) for one in previous.operators)
    found = sorted(
        [*_current(before, operators, page), *_gone(previous, operators, page)],
        key=lambda change: (list(ChangeKind).index(change.kind), change.place, change.title),
    )
    return ReportChanges(day(previous.measured), found[:MAX_SHOWN], max(0, len(found) - MAX_SHOWN))


def _points(operators: Iterable[tuple[str, Iterable[DeviceSummary]]]) -> _Points:
    return {
        (operator, view.device.slug, row.implementation, point.workload): point
        for operator, views in operators
        for view in views
        for row in view.rows
        for point in row.points
    }


def _current(before: _Points, operators: Sequence[OperatorReport], page: Page) -> Iterator[Change]:
    for operator in operators:
        urls = operator.urls(page)
        for view in operator.views:
            place = f"{operator.title}, {view.device.name}, {view_title(view)}"
            place_url = operator.view_url(view, page)
            for row in view.rows:
                old = [
                    before.get((operator.folder, view.device.slug, row.implementation, point.workload))
                    for point in row.points
                ]
                kind, detail = _compare(old, row)
                if kind is not None:
                    url = urls.get(row.implementation, "")
                    yield Change(kind, row.title, url, place, place_url, detail)


def _compare(old: Sequence[Point | None], row: Row) -> tuple[ChangeKind | None, str]:
    """Return what changed about a row whose points were ``old``, and by how much or why."""
    pairs = list(zip(old, row.points, strict=True))
    passed_before = [(was, now) for was, now in pairs if was and was.status is Status.OK]
    for _, now in passed_before:
        if now.status is not Status.OK:
            return ChangeKind.FAILS, f"{now.workload}: {now.reason or now.status.value}"
    if passed_before:
        return _by_speed(passed_before)
    if all(now.status is not Status.OK for _, now in pairs):
        return None, ""
    speed = f"speed-up {times(row.speedup)}" if row.speedup is not None and not row.baseline else ""
    return (ChangeKind.PASSES if any(old) else ChangeKind.NEW), speed


def _by_speed(pairs: Sequence[tuple[Point, Point]]) -> tuple[ChangeKind | None, str]:
    """Return the significant change, a slowdown first, and by how much; other workloads do not count."""
    ratios = [
        was.p50_ms / now.p50_ms for was, now in pairs if was.p50_ms and now.p50_ms and _differ(was, now)
    ]
    slower, faster = ([it for it in ratios if (it < 1) is slow] for slow in (True, False))
    if not ratios:
        return None, ""
    shown = slower or faster
    detail = f"{times(geometric_mean(shown))}; significant on {len(shown)} of {len(pairs)} workloads"
    if slower and faster:
        detail += f"; {times(geometric_mean(faster))} on {len(faster)}"
    return (ChangeKind.SLOWER if slower else ChangeKind.FASTER), detail


def _differ(was: Point, now: Point) -> bool:
    """Whether two medians of enough processes differ by at least the smallest effect, and their intervals do not overlap."""
    ends = (was.ci_low_ms, was.ci_high_ms, now.ci_low_ms, now.ci_high_ms)
    if (
        was.p50_ms is None
        or now.p50_ms is None
        or None in ends
        or min(was.processes, now.processes) < FEWEST_PROCESSES
    ):
        return False
    low, high, now_low, now_high = (end or 0.0 for end in ends)
    return (now_high < low or now_low > high) and abs(was.p50_ms / now.p50_ms - 1) >= SMALLEST_EFFECT


def _gone(previous: Report, operators: Sequence[OperatorReport], page: Page) -> Iterator[Change]:
    """Yield the rows that had a time and no longer exist, once for each device."""
    now = {
        (operator.folder, view.device.slug, row.implementation)
        for operator in operators
        for view in operator.views
        for row in view.rows
    }
    pages = {operator.folder: page.url(operator.page) for operator in operators}
    before = {
        (summary.operator, view.device.slug, row.implementation): (summary, view, row)
        for summary in previous.operators
        for view in summary.devices
        for row in view.rows
        if row.passed
    }
    for key in before.keys() - now:
        summary, view, row = before[key]
        place = f"{summary.title}, {view.device.name}"
        yield Change(ChangeKind.GONE, row.title, "", place, pages.get(summary.operator, ""))
