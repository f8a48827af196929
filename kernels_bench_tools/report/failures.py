"""Failures over all operators and devices, grouped by reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.records.build import CellRun, NotebookRun, operator_of
from kernels_bench_tools.records.codec import read_committed, read_effects, read_records
from kernels_bench_tools.records.committed import cell_owner
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row
from kernels_bench_tools.report.artifacts import Artifact
from kernels_bench_tools.report.labels import Label, status_label
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.text import grouped

_NUMBER = re.compile(r"-?\d[\d.,]*")
_CODE = re.compile(r"\[[a-z][a-z-]+\]$")
"""The code at the end of some reasons: ``[hub-unreachable]``."""
_COMPARED = 120
"""Characters of a reason that are compared; later ones are details such as shapes."""


@dataclass(frozen=True)
class FailedResult:
    """One failed result: an implementation on one workload, or a row without workloads."""

    operator: OperatorReport
    view: DeviceSummary
    row: Row
    point: Point

    @property
    def expected(self) -> str:
        """Why its notebook expects it; empty if it does not."""
        notebook = self.operator.notebooks.get(self.row.implementation)
        return notebook.front.expect.get(self.point.status.value, "") if notebook else ""


@dataclass(frozen=True)
class FailureGroup:
    """All failures for one reason."""

    id: str
    label: Label
    reason: str
    """The most frequent wording."""
    variants: int
    """Number of other wordings, such as with other numbers."""
    rows: Sequence[Sequence[FailedResult]]
    """The failures by operator, implementation and device."""

    @property
    def workloads(self) -> int:
        """Number of failed results."""
        return sum(map(len, self.rows))


def failure_groups(operators: Iterable[OperatorReport], page: Page) -> list[FailureGroup]:
    """Return the failures by reason: in the order of their status, then of their number of workloads."""
    found = grouped(((failure.point.status, _kind(failure)), failure) for failure in _failures(operators))
    ordered = sorted(found.items(), key=lambda item: (_place(item[0][0]), -len(item[1]), item[0][1]))
    return [_group(status, failures, page) for (status, _), failures in ordered]


def record_problems(
    root: Path,
    operators: Iterable[OperatorReport],
    made: Iterable[Artifact],
    device: Device,
    effects: Iterable[Path] = (),
) -> list[str]:
    """Return a message for each line of record files that is no record, or does not belong in its file."""
    found: list[RecordError] = []
    for operator in operators:
        for file in sorted([*operator.record_files, *operator.refused_files]):
            read_committed(file, operator.folder, file.relative_to(root).as_posix(), found.append)
    for file in effects:
        read_effects(file, file.relative_to(root).as_posix(), found.append)
    for one in made:
        if one.suffix == "jsonl" and one.exists and operator_of(one.notebook) and not is_plain(one.file):
            owner = cell_owner(one.notebook, device)
            read_records(one.file, f"{one.notebook} {one.name}", found.append, owner)
    return list(map(str, found))


def failed_cells(notebooks: Iterable[NotebookRun]) -> list[tuple[NotebookRun, CellRun]]:
    """Return the cells whose last result on this machine is wrong or failed; expected failures come last."""
    found = [
        (notebook, cell)
        for notebook in notebooks
        for cell in notebook.cells
        if cell.status is not None and cell.status.failed
    ]
    return sorted(found, key=lambda pair: bool(pair[1].expected))


def _place(status: Status) -> tuple[bool, int]:
    """Return the place of a status: failures of the implementation come before those of the machine."""
    return not status.failed, list(Status).index(status)


def _kind(failure: FailedResult) -> str:
    """Return what equal reasons share: their code, or their beginning without its numbers."""
    reason = failure.point.reason or failure.row.reason
    code = _CODE.search(reason)
    return code[0] if code else _NUMBER.sub("#", reason)[:_COMPARED]


def _failures(operators: Iterable[OperatorReport]) -> Iterable[FailedResult]:
    for operator in operators:
        for view in operator.views:
            for row in view.rows:
                # A view that was never run has no workloads; its rows still have reasons.
                whole = Point(workload="", status=row.status, reason=row.reason)
                for point in row.points or [whole]:
                    if point.status is not Status.OK:
                        yield FailedResult(operator, view, row, point)


def _group(status: Status, failures: Sequence[FailedResult], page: Page) -> FailureGroup:
    reasons = Counter(failure.point.reason or failure.row.reason for failure in failures)
    by_row = grouped(
        ((one.operator.folder, one.row.implementation, one.view.device.slug), one) for one in failures
    )
    return FailureGroup(
        id=page.heading_id(f"{status.value}-{reasons.most_common(1)[0][0][:40]}".replace("_", "-")),
        label=status_label(status),
        reason=reasons.most_common(1)[0][0] or "no reason recorded",
        variants=len(reasons) - 1,
        rows=list(by_row.values()),
    )
