"""Failures over all operators and devices, grouped by reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels_bench_tools.report.labels import Label, status_label
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row

_NUMBER = re.compile(r"-?\d[\d.,]*")
_CODE = re.compile(r"\[[a-z][a-z-]+\]$")
"""The code at the end of some reasons: ``[hub-unreachable]``."""
_COMPARED = 120
"""Characters of a reason that are compared; later ones are details such as shapes."""
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
"""Failures of the implementation come before those of the machine."""


@dataclass(frozen=True)
class AffectedRow:
    """An implementation on a device that failed for one reason."""

    operator: str
    operator_url: str
    title: str
    url: str
    """Empty if it has no page."""
    device: str
    workloads: int
    """Number of its workloads that failed."""
    views: Sequence[str]
    """Titles of the views; empty where the device has only one."""


@dataclass(frozen=True)
class FailureGroup:
    """All failures for one reason."""

    id: str
    label: Label
    reason: str
    """The most frequent wording."""
    variants: int
    """Number of other wordings, such as with other numbers."""
    affected: Sequence[AffectedRow]
    workloads: int


@dataclass(frozen=True)
class _Failure:
    operator: OperatorReport
    view: DeviceSummary
    row: Row
    point: Point


def failure_groups(operators: Iterable[OperatorReport], page: Page, paths: SitePaths) -> list[FailureGroup]:
    """Return the failures by reason: in the order of their status, then of their number of workloads."""
    found: dict[tuple[Status, str], list[_Failure]] = {}
    for failure in _failures(operators):
        found.setdefault((failure.point.status, _kind(failure)), []).append(failure)
    ordered = sorted(found.items(), key=lambda item: (ORDER.index(item[0][0]), -len(item[1]), item[0][1]))
    return [_group(status, failures, page, paths) for (status, _), failures in ordered]


def _kind(failure: _Failure) -> str:
    """Return what equal reasons share: their code, or their beginning without its numbers."""
    reason = failure.point.reason or failure.row.reason
    code = _CODE.search(reason)
    return code[0] if code else _NUMBER.sub("#", reason)[:_COMPARED]


def _failures(operators: Iterable[OperatorReport]) -> Iterable[_Failure]:
    for operator in operators:
        for view in operator.views:
            for row in view.rows:
                # A view that was never run has no workloads; its rows still have reasons.
                whole = Point(workload="", status=row.status, reason=row.reason)
                for point in row.points or [whole]:
                    if point.status is not Status.OK:
                        yield _Failure(operator, view, row, point)


def _group(status: Status, failures: Sequence[_Failure], page: Page, paths: SitePaths) -> FailureGroup:
    reasons = Counter(failure.point.reason or failure.row.reason for failure in failures)
    by_row: dict[tuple[str, str, str], list[_Failure]] = {}
    for one in failures:
        key = (one.operator.folder, one.row.implementation, one.view.device.slug)
        by_row.setdefault(key, []).append(one)
    return FailureGroup(
        id=page.heading_id(f"{status.value}-{reasons.most_common(1)[0][0][:40]}".replace("_", "-")),
        label=status_label(status),
        reason=reasons.most_common(1)[0][0] or "no reason recorded",
        variants=len(reasons) - 1,
        affected=[_affected(found, page, paths) for found in by_row.values()],
        workloads=len(failures),
    )


def _affected(failures: Sequence[_Failure], page: Page, paths: SitePaths) -> AffectedRow:
    one = failures[0]
    notebook = one.operator.notebook(one.row.implementation)
    return AffectedRow(
        operator=one.operator.title,
        operator_url=page.url(one.operator.page),
        title=one.row.title,
        url=page.url(paths.pages[notebook.path]) if notebook else "",
        device=one.view.device.name,
        workloads=len(failures),
        views=list(dict.fromkeys(failure.view.view for failure in failures if failure.view.view)),
    )
