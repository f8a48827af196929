"""What could not run and why, over all operators and devices: grouped by reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels_bench_tools.report.operators import Operator
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.report.words import Mark, status_mark
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row

_NUMBER = re.compile(r"-?\d[\d.,]*")
_CODE = re.compile(r"\[[a-z][a-z-]+\]$")
"""What ends a reason that has a name of its own: ``[hub-unreachable]``."""
_TOLD_APART = 120
"""Letters by which reasons are told apart; later ones are details such as shapes."""
ORDER = [
    Status.INCORRECT,
    Status.EXCEEDS_PHYSICS,
    Status.REJECTED,
    Status.ERROR,
    Status.CRASHED,
    Status.TIMEOUT,
    Status.OOM,
    Status.INVALID,
    Status.UNSUPPORTED,
    Status.ABSENT,
]
"""What is the implementation's fault before what is the machine's."""


@dataclass(frozen=True)
class Affected:
    """An implementation on a device that a reason speaks of."""

    operator: str
    operator_url: str
    title: str
    url: str
    """Empty if it has no page."""
    device: str
    workloads: int
    """How many of its workloads."""
    views: Sequence[str]
    """Which views; empty where the device has only one."""


@dataclass(frozen=True)
class Group:
    """Everything that did not end well for one reason."""

    id: str
    mark: Mark
    reason: str
    """As most of them have it."""
    alike: int
    """How many other wordings there are, such as with other numbers."""
    affected: Sequence[Affected]
    workloads: int


@dataclass(frozen=True)
class _Failure:
    operator: Operator
    view: DeviceSummary
    row: Row
    point: Point


def failure_groups(operators: Iterable[Operator], page: Page, paths: SitePaths) -> list[Group]:
    """Return what did not end well: by status, then by how many workloads a reason stands for."""
    found: dict[tuple[Status, str], list[_Failure]] = {}
    for failure in _failures(operators):
        found.setdefault((failure.point.status, _kind(failure)), []).append(failure)
    ordered = sorted(found.items(), key=lambda item: (ORDER.index(item[0][0]), -len(item[1]), item[0][1]))
    return [_group(status, failures, page, paths) for (status, _), failures in ordered]


def _kind(failure: _Failure) -> str:
    """Return what reasons of one kind share: their code, or their beginning without its numbers."""
    reason = failure.point.reason or failure.row.reason
    code = _CODE.search(reason)
    return code[0] if code else _NUMBER.sub("#", reason)[:_TOLD_APART]


def _failures(operators: Iterable[Operator]) -> Iterable[_Failure]:
    for operator in operators:
        for view in operator.views:
            for row in view.rows:
                # A view that nobody has ever run has no workloads; its rows still have reasons.
                whole = Point(workload="", status=row.status, reason=row.reason)
                for point in row.points or [whole]:
                    if point.status is not Status.OK:
                        yield _Failure(operator, view, row, point)


def _group(status: Status, failures: Sequence[_Failure], page: Page, paths: SitePaths) -> Group:
    reasons = Counter(failure.point.reason or failure.row.reason for failure in failures)
    by_row: dict[tuple[str, str, str], list[_Failure]] = {}
    for one in failures:
        key = (one.operator.folder, one.row.implementation, one.view.device.slug)
        by_row.setdefault(key, []).append(one)
    return Group(
        id=page.heading_id(f"{status.value}-{reasons.most_common(1)[0][0][:40]}".replace("_", "-")),
        mark=status_mark(status),
        reason=reasons.most_common(1)[0][0] or "its record does not say why",
        alike=len(reasons) - 1,
        affected=[_affected(found, page, paths) for found in by_row.values()],
        workloads=len(failures),
    )


def _affected(failures: Sequence[_Failure], page: Page, paths: SitePaths) -> Affected:
    one = failures[0]
    notebook = one.operator.notebook(one.row.implementation)
    return Affected(
        operator=one.operator.title,
        operator_url=page.url(one.operator.page),
        title=one.row.title,
        url=page.url(paths.pages[notebook.path]) if notebook else "",
        device=one.view.device.name,
        workloads=len(failures),
        views=list(dict.fromkeys(failure.view.view for failure in failures if failure.view.view)),
    )
