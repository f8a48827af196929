"""Failures over all operators and devices, grouped by reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Summary
from kernels_bench_tools.text import grouped

_NUMBER = re.compile(r"-?\d[\d.,]*")
_CODE = re.compile(r"\[[a-z][a-z-]+\]$")
"""The code at the end of some reasons: ``[hub-unreachable]``."""
_WHERE = re.compile(r"; this machine has .*| \(process(es)? [^)]*\)")
"""Where it failed, which is no other cause."""
_COMPARED = 120
"""Characters of a reason that are compared; later ones are details such as shapes."""


class FailedResult(NamedTuple):
    operator: str
    view: DeviceSummary
    row: Row
    point: Point

    @property
    def reason(self) -> str:
        return self.point.reason or self.row.reason


@dataclass(frozen=True)
class FailureGroup:
    status: Status
    reason: str
    """The most frequent wording; empty if none was recorded."""
    variants: int
    """Number of other wordings, such as with other numbers."""
    rows: Sequence[Sequence[FailedResult]]
    """The failures by operator, implementation and device."""

    @property
    def workloads(self) -> int:
        return sum(map(len, self.rows))


def failure_groups(summaries: Iterable[Summary]) -> list[FailureGroup]:
    """Return the failures by reason: those of implementations before those of the machine, the most frequent first.

    Equal reasons share their code, or their beginning without its numbers.
    """
    failures = [
        FailedResult(summary.operator, view, row, point)
        for summary in summaries
        for view in summary.devices
        for row in view.rows
        # A view that was never run has no workloads; its rows still have reasons.
        for point in row.points or [Point(workload="", status=row.status, reason=row.reason)]
        if not point.status.passed
    ]

    def key(failure: FailedResult) -> tuple[Status, str]:
        code = _CODE.search(failure.reason)
        return failure.point.status, code[0] if code else _NUMBER.sub("#", _WHERE.sub("", failure.reason))[
            :_COMPARED
        ]

    def order(item: tuple[tuple[Status, str], list[FailedResult]]) -> tuple[bool, int, int, str]:
        (status, kind), alike = item
        return not status.failed, list(Status).index(status), -len(alike), kind

    groups = []
    for (status, _), alike in sorted(
        grouped((key(failure), failure) for failure in failures).items(), key=order
    ):
        reasons = Counter(failure.reason for failure in alike)
        rows = grouped(
            ((failure.operator, failure.row.implementation, failure.view.device.slug), failure)
            for failure in alike
        )
        reason = reasons.most_common(1)[0][0]
        groups.append(FailureGroup(status, reason, len(reasons) - 1, list(rows.values())))
    return groups
