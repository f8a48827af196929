"""How the times of a project changed from commit to commit, as pages show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path
from typing import NamedTuple

from kernels_bench_tools.records.summary import SMALLEST_EFFECT, Summary
from kernels_bench_tools.results.history.causes import Measurement, RowName, points_of
from kernels_bench_tools.results.history.changes import CHANGED, Step, compare_rows, count_changes
from kernels_bench_tools.results.history.states import (
    Place,
    measured_rows,
    read_history,
    read_report,
    read_state,
    record_paths,
    repository_of,
)
from kernels_bench_tools.text.tables import grouped


class Mark(NamedTuple):
    """A measurement in the chart of a row, by place in percent of its width and height from the upper left."""

    step: Step
    left: float
    right: float
    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class History:
    """What the report shows of changes over time."""

    since: str
    """The state with which the report is compared."""
    base: Mapping[RowName, Measurement]
    """Its rows."""
    steps: Sequence[Step]

    def changes(self, summaries: Iterable[Summary]) -> tuple[str, list[Step]]:
        """Return how many rows of a report changed since, in one line, and those that did."""
        steps = compare_rows(self.base, points_of(summaries), self.steps)
        return count_changes(steps), [step for step in steps if step.kind in CHANGED]

    @cached_property
    def of(self) -> Mapping[tuple[str, str], Sequence[Step]]:
        """The steps of each implementation, by its operator and its name."""
        return grouped(((step.row.operator, step.row.implementation), step) for step in self.steps)

    def charts(self, operator: str, implementation: str) -> dict[str, dict[str, list[Mark]]]:
        """Return the measurements of an implementation by device and workload, as far as they are several."""
        own = self.of.get((operator, implementation), ())
        timed = grouped((step.row, step) for step in own if step.after and step.after.estimate)
        charts: dict[str, dict[str, list[Mark]]] = {}
        for row, steps in timed.items():
            times = [step.times[-1] for step in steps]
            places = [[log(end) for end in (time if time.known else [time.value] * 3)] for time in times]
            top, bottom = max(map(max, places)), min(map(min, places))
            height, width = max(top - bottom, 2 * SMALLEST_EFFECT) / 100, 100 / len(steps)
            marks = []
            for at, (step, place) in enumerate(zip(steps, places, strict=True)):
                ends = (width * at, width * (at + 1), *((top - end) / height for end in place))
                marks.append(Mark(step, *(round(end, 2) for end in ends)))
            if len(marks) > 1:
                charts.setdefault(row.device, {})[row.workload] = marks
        return charts


def find_history(place: Place, since: str) -> History:
    """Return how times changed from commit to commit, and the rows of a state."""
    repository = repository_of(place, since)
    paths = [record_paths(operator) for operator in place.operators]
    steps = read_history(repository, paths) if repository else []
    base = measured_rows(place, repository, read_state(place, repository, since))
    report = Path(since).is_file() and f"the report of {read_report(Path(since)).measured[:10]}"
    return History(report or since, base, steps)
