"""Changes since an earlier report, read from its ``report.json``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    SMALLEST_EFFECT,
    DeviceSummary,
    Point,
    Report,
    Row,
    Summary,
    geometric_mean,
)
from kernels_bench_tools.results.tables import view_title
from kernels_bench_tools.text import times


class ChangeKind(StrEnum):
    FAILS = "fails now"
    SLOWER = "slower"
    FASTER = "faster"
    PASSES = "passes now"
    NEW = "new"
    GONE = "gone"


class Change(NamedTuple):
    kind: ChangeKind
    operator: str
    row: Row
    place: str
    """Operator, device and view."""
    view: DeviceSummary | None
    """None of a row that is gone."""
    detail: str = ""


def read_report(path: Path) -> Report:
    """Return the report in a ``report.json`` of an earlier build.

    Raises:
        ProjectError: It cannot be read, or has another format.
    """
    try:
        return read_struct(path, Report)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except msgspec.DecodeError as error:
        what = f"is not a report that this version can read: {error}"
    raise ProjectError(str(path), what, "The report.json of an earlier build")


def changes_since(previous: Report, summaries: Sequence[Summary]) -> list[Change]:
    """Return how rows differ from those of an earlier report, the most important first.

    Rows that had a time and no longer exist are returned once for each device.
    """
    before = {key: (summary, view, row) for key, summary, view, row in _rows(previous.operators)}
    points = {
        (*key, point.workload): point for key, *_, row in _rows(previous.operators) for point in row.points
    }
    found, now = [], set()
    for key, summary, view, row in _rows(summaries):
        now.add(key)
        kind, detail = _compare([points.get((*key, point.workload)) for point in row.points], row)
        if kind is not None:
            place = f"{summary.title}, {view.device.name}, {view_title(view)}"
            found.append(Change(kind, summary.operator, row, place, view, detail))
    for key in before.keys() - now:
        summary, view, row = before[key]
        if row.passed:
            place = f"{summary.title}, {view.device.name}"
            found.append(Change(ChangeKind.GONE, summary.operator, row, place, None))
    order = list(ChangeKind)
    return sorted(found, key=lambda change: (order.index(change.kind), change.place, change.row.title))


def _rows(
    summaries: Iterable[Summary],
) -> Iterator[tuple[tuple[str, str, str], Summary, DeviceSummary, Row]]:
    for summary in summaries:
        for view in summary.devices:
            for row in view.rows:
                yield (summary.operator, view.device.slug, row.implementation), summary, view, row


def _compare(old: Sequence[Point | None], row: Row) -> tuple[ChangeKind | None, str]:
    pairs = list(zip(old, row.points, strict=True))
    passed_before = [(was, now) for was, now in pairs if was and was.status is Status.OK]
    for _, now in passed_before:
        if now.status is not Status.OK:
            return ChangeKind.FAILS, f"{now.workload}: {now.reason or now.status.value}"
    if not passed_before:
        if all(now.status is not Status.OK for _, now in pairs):
            return None, ""
        speed = f"speed-up {times(row.speedup)}" if row.speedup is not None and not row.baseline else ""
        return (ChangeKind.PASSES if any(old) else ChangeKind.NEW), speed
    # Only significant differences count, and a slowdown is not hidden by others.
    ratios = []
    for was, now in passed_before:
        (low, high), (now_low, now_high) = (was.ci_low_ms, was.ci_high_ms), (now.ci_low_ms, now.ci_high_ms)
        if not (was.p50_ms and now.p50_ms and low and high and now_low and now_high):
            continue
        ratio = was.p50_ms / now.p50_ms
        enough = min(was.processes, now.processes) >= FEWEST_PROCESSES
        if enough and (now_high < low or now_low > high) and abs(ratio - 1) >= SMALLEST_EFFECT:
            ratios.append(ratio)
    slower, faster = ([it for it in ratios if (it < 1) is slow] for slow in (True, False))
    if not ratios:
        return None, ""
    shown = slower or faster
    detail = f"{times(geometric_mean(shown))}; significant on {len(shown)} of {len(passed_before)} workloads"
    if slower and faster:
        detail += f"; {times(geometric_mean(faster))} on {len(faster)}"
    return (ChangeKind.SLOWER if slower else ChangeKind.FASTER), detail
