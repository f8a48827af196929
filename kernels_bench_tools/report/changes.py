"""What has changed since an earlier report: its ``report.json`` beside what is published now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.report.dates import day
from kernels_bench_tools.report.device_rows import view_slug, view_title
from kernels_bench_tools.report.format import times
from kernels_bench_tools.report.operators import Operator, implementation_id
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.report.words import Mark
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import (
    SMALLEST_EFFECT,
    DeviceSummary,
    Point,
    Report,
    Row,
    geometric_mean,
)

MOST_SHOWN = 12

_Points: TypeAlias = Mapping[tuple[str, str, str, str], Point]
"""By operator, slug of the device, implementation and workload."""


class Kind(IntEnum):
    """What has become of a row, what a reader should know first at the top."""

    FAILS = 0
    SLOWER = 1
    FASTER = 2
    PASSES = 3
    NEW = 4
    GONE = 5


_MARKS = {
    Kind.FAILS: Mark("✗", "fails now", "bad"),
    Kind.SLOWER: Mark("▼", "slower", "bad"),
    Kind.FASTER: Mark("▲", "faster", "good"),
    Kind.PASSES: Mark("✓", "passes now", "good"),
    Kind.NEW: Mark("+", "new", "good"),
    Kind.GONE: Mark("−", "gone", "muted"),
}


@dataclass(frozen=True)
class Change:
    """A row that is not what it was."""

    kind: Kind
    title: str
    """The implementation's."""
    url: str
    """Empty if it has no page."""
    place: str
    """Operator, device and view."""
    place_url: str
    detail: str = ""

    @property
    def mark(self) -> Mark:
        """What the page shows of it first."""
        return _MARKS[self.kind]


@dataclass(frozen=True)
class Changes:
    """What the front page says of them."""

    since: str
    """Day of the youngest record of the earlier report; empty if it had none."""
    shown: Sequence[Change]
    more: int


def read_report(path: Path) -> Report:
    """Return the report that an earlier build left as ``report.json``.

    Raises:
        ProjectError: It cannot be read, or is of a version that this one does not know.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except msgspec.DecodeError as error:
        what = f"is not a report that this version can read: {error}"
    raise ProjectError(str(path), what, "The report.json of an earlier build")


def changes_since(previous: Report, operators: Sequence[Operator], page: Page, paths: SitePaths) -> Changes:
    """Return how the operators' rows differ from those of an earlier report."""
    before = _points((one.operator, one.devices) for one in previous.operators)
    found = sorted(
        [*_of_now(before, operators, page, paths), *_gone(previous, operators, page)],
        key=lambda change: (change.kind, change.place, change.title),
    )
    return Changes(day(previous.measured), found[:MOST_SHOWN], max(0, len(found) - MOST_SHOWN))


def _points(operators: Iterable[tuple[str, Iterable[DeviceSummary]]]) -> _Points:
    return {
        (operator, view.device.slug, row.implementation, point.workload): point
        for operator, views in operators
        for view in views
        for row in view.rows
        for point in row.points
    }


def _of_now(before: _Points, operators: Sequence[Operator], page: Page, paths: SitePaths) -> Iterator[Change]:
    for operator in operators:
        urls = {implementation_id(one): page.url(paths.pages[one.path]) for one in operator.implementations}
        for view in operator.views:
            place = f"{operator.title}, {view.device.name}, {view_title(view)}"
            place_url = f"{page.url(operator.page_of(view))}#{view_slug(view)}"
            for row in view.rows:
                old = [
                    before.get((operator.folder, view.device.slug, row.implementation, point.workload))
                    for point in row.points
                ]
                kind, detail = _compare(old, row)
                if kind is not None:
                    url = urls.get(row.implementation, "")
                    yield Change(kind, row.title, url, place, place_url, detail)


def _compare(old: Sequence[Point | None], row: Row) -> tuple[Kind | None, str]:
    """Return what has become of a row whose points were ``old``, and by how much or why."""
    pairs = list(zip(old, row.points, strict=True))
    passed = [now for _, now in pairs if now.status is Status.OK]
    if any(was and was.status is Status.OK and now.status is not Status.OK for was, now in pairs):
        lost = next(
            now for was, now in pairs if was and was.status is Status.OK and now.status is not Status.OK
        )
        return Kind.FAILS, f"{lost.workload}: {lost.reason or lost.status.value}"
    if not passed:
        return None, ""
    if not any(was and was.status is Status.OK for was, _ in pairs):
        known = any(was for was, _ in pairs)
        return (Kind.PASSES if known else Kind.NEW), _speed(row)
    return _by_speed([(was, now) for was, now in pairs if was])


def _by_speed(pairs: Sequence[tuple[Point, Point]]) -> tuple[Kind | None, str]:
    ratios = [
        (was.p50_ms / now.p50_ms, _differ(was, now))
        for was, now in pairs
        if was.status is now.status is Status.OK and was.p50_ms and now.p50_ms
    ]
    sure = sum(differs for _, differs in ratios)
    if not sure:
        return None, ""
    ratio = geometric_mean([ratio for ratio, _ in ratios])
    detail = f"{times(ratio)} the speed it had, on {sure} of {len(ratios)} workloads surely"
    return (Kind.FASTER if ratio > 1 else Kind.SLOWER), detail


def _differ(was: Point, now: Point) -> bool:
    """Whether two medians differ by enough, and by more than both intervals leave open."""
    ends = (was.ci_low_ms, was.ci_high_ms, now.ci_low_ms, now.ci_high_ms)
    if was.p50_ms is None or now.p50_ms is None or None in ends:
        return False
    low, high, now_low, now_high = (end or 0.0 for end in ends)
    return (now_high < low or now_low > high) and abs(was.p50_ms / now.p50_ms - 1) >= SMALLEST_EFFECT


def _speed(row: Row) -> str:
    return (
        f"{times(row.speedup)} the baseline's speed" if row.speedup is not None and not row.baseline else ""
    )


def _gone(previous: Report, operators: Sequence[Operator], page: Page) -> Iterator[Change]:
    """Yield the rows that had a time and that nothing stands for any more, once for each device."""
    now = {
        (operator.folder, view.device.slug, row.implementation)
        for operator in operators
        for view in operator.views
        for row in view.rows
    }
    pages = {operator.folder: page.url(operator.page) for operator in operators}
    found: dict[tuple[str, str, str], Change] = {}
    for summary in previous.operators:
        for view in summary.devices:
            for row in view.rows:
                key = (summary.operator, view.device.slug, row.implementation)
                if row.passed and key not in now and key not in found:
                    place = f"{summary.title}, {view.device.name}"
                    found[key] = Change(Kind.GONE, row.title, "", place, pages.get(summary.operator, ""))
    yield from found.values()
