"""Whether the time of a row changed between two measurements, and what became of rows that are compared.

A row is an implementation on a workload on a device. Its time changed if both intervals are apart, by more than 0.5 % and than
the row's own noise: the 95 % quantile of its changes while nothing else changed. Of many rows that are compared at
once, Benjamini and Hochberg's correction keeps the share of false changes at most 5 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, hypot, log
from typing import Any

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.git import Commit
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, SMALLEST_EFFECT, CauseKind, ChangeKind
from kernels_bench_tools.results.history.causes import Cause, Measurement, RowName, causes
from kernels_bench_tools.stats import ratio_of, student, student_tail
from kernels_bench_tools.text.numbers import deviation, milliseconds
from kernels_bench_tools.text.tables import grouped

FALSE_CHANGES = 0.05
"""Share of the changes that are reported which may be none."""
_NOISE, _PAIRS = 0.95, 20
"""The quantile of a row's differences that is its noise, and of how many, the latest."""
TIMED = frozenset({ChangeKind.SLOWER, ChangeKind.FASTER})
CHANGED = TIMED | {ChangeKind.FAILS, ChangeKind.PASSES, ChangeKind.STALE}


@dataclass
class Step:
    """Two successive measurements of a row, or two that are compared."""

    row: RowName
    before: Measurement | None
    after: Measurement | None
    commit: Commit | None = None
    """Which brought ``after``."""
    causes: list[Cause] = field(default_factory=list)
    kind: ChangeKind = ChangeKind.SAME
    ratio: Estimate | None = None
    """The time after over the time before, with its interval."""
    floor: float = SMALLEST_EFFECT
    """Smaller relative differences are the row's noise."""

    def __post_init__(self) -> None:
        if self.before and self.after:
            self.causes = causes(self.before, self.after)
            if len(self.times) > 1:
                self.ratio = ratio_of(*reversed(self.times))

    @property
    def times(self) -> list[Estimate]:
        """The times before and after, as far as they are known."""
        return [side.estimate for side in (self.before, self.after) if side and side.estimate]

    def order(self) -> tuple[int, RowName]:
        """The most important change first."""
        return self.kind.place, self.row

    def is_apart(self, other: Step) -> bool:
        """Return whether both of this step's measurements were before both of another's, or after them."""
        if other is self or not (self.before and self.after and other.before and other.after):
            return other is not self
        return self.after.time <= other.before.time or self.before.time >= other.after.time

    @property
    def unexplained(self) -> bool:
        """Whether the time changed although nothing else did."""
        return self.kind in TIMED and self.causes[0].kind is CauseKind.NOTHING

    @property
    def why(self) -> str:
        """What differs, in one line."""
        return "unexplained change" if self.unexplained else "; ".join(map(str, self.causes))

    def __str__(self) -> str:
        """The measurement, and what it changed, in one line."""
        parts = [f"{self.commit.name[:8]} {self.commit.subject}"] if self.commit else []
        parts += [f"{milliseconds(time.value)} ms" for time in self.times[-1:]]
        parts += [f"{deviation(self.ratio.value - 1)}, {self.kind.label}"] if self.ratio else []
        return "; ".join(filter(None, [*parts, self.why]))

    def as_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {**self.row._asdict(), "change": self.kind, "floor": self.floor}
        data |= {
            "causes": [cause._asdict() for cause in self.causes],
            **_with_ends("difference", self.ratio, 1.0),
        }
        for name, side in (("base", self.before), ("head", self.after)):
            if side:
                about = {"status": side.status, "measured": side.time, "processes": side.processes}
                data[name] = about | _with_ends("ms", side.estimate)
        if self.commit:
            data |= {
                "commit": self.commit.name,
                "subject": self.commit.subject,
                "committed": self.commit.time,
            }
        return data


def _with_ends(name: str, value: Estimate | None, less: float = 0.0) -> dict[str, float]:
    """Return an estimate as fields, without the ends of an interval that is not known."""
    known = value[: 3 if value.known else 1] if value else ()
    return {
        f"{name}{ending}": each - less for ending, each in zip(("", "_low", "_high"), known, strict=False)
    }


def decide_changes(steps: Sequence[Step], history: Iterable[Step] = ()) -> Sequence[Step]:
    """Set what became of each row, and return the steps.

    The noise of rows is that of ``history``, without what overlaps in time with a step.
    """
    quiet = grouped(
        (step.row, step) for step in history if step.ratio and step.causes[0].kind is CauseKind.NOTHING
    )
    tested: list[tuple[float, Step]] = []
    for step in steps:
        old, new = step.before, step.after
        others = (other for other in quiet.get(step.row, [])[-_PAIRS:] if other.is_apart(step))
        noise = sorted(abs(log(other.ratio.value)) for other in others if other.ratio)
        step.floor = max([SMALLEST_EFFECT, *noise[ceil(_NOISE * len(noise)) - 1 :][:1]])
        if old is None or new is None:
            step.kind = ChangeKind.GONE if new is None else ChangeKind.NEW
        elif Status.DISTURBED in {old.status, new.status}:
            step.kind = ChangeKind.UNSURE
        elif (old.status is Status.OK) != (new.status is Status.OK):
            step.kind = ChangeKind.FAILS if old.status is Status.OK else ChangeKind.PASSES
        elif old.status is not Status.OK or step.ratio is None:
            step.kind = ChangeKind.SAME
        elif min(old.processes, new.processes) < FEWEST_PROCESSES or not step.ratio.known:
            step.kind = ChangeKind.UNSURE
        else:
            step.kind = ChangeKind.SAME
            tested.append((_chance(step), step))
    tested.sort(key=lambda it: it[0])
    ranks = (
        rank for rank, (chance, _) in enumerate(tested, 1) if chance <= FALSE_CHANGES * rank / len(tested)
    )
    for _, step in tested[: max(ranks, default=0)]:
        old_time, new_time = step.times
        is_apart = new_time.low > old_time.high or new_time.high < old_time.low
        if is_apart and abs(log(new_time.value / old_time.value)) > step.floor:
            step.kind = ChangeKind.SLOWER if new_time.value > old_time.value else ChangeKind.FASTER
    return steps


def compare_rows(
    before: Mapping[RowName, Measurement], after: Mapping[RowName, Measurement], history: Iterable[Step]
) -> list[Step]:
    """Return the rows with a time that two states have, judged and in order, without what is the same measurement."""
    steps = []
    for row in before.keys() | after.keys():
        old, new = before.get(row), after.get(row)
        if not (old and new) or (old.status, old.estimate) != (new.status, new.estimate):
            steps.append(Step(row, old, new))
    return sorted(decide_changes([step for step in steps if step.times], history), key=Step.order)


def _chance(step: Step) -> float:
    """Return how likely such a difference is if there is none: Welch's test of the processes' log-medians."""
    old, new = step.times
    freedom = [side.processes - 1 for side in (step.before, step.after) if side]
    spreads = [
        log(time.high / time.low) / 2 / student(free) for time, free in zip((old, new), freedom, strict=True)
    ]
    spread = hypot(*spreads)
    if not spread:
        return float(old.value == new.value)
    parts = sum(each**4 / free for each, free in zip(spreads, freedom, strict=True))
    return student_tail(abs(log(new.value / old.value)) / spread, round(spread**4 / parts))


def count_changes(steps: Iterable[Step]) -> str:
    """Return in one line how many rows changed, and by what."""
    parts, of_kind = [], grouped((step.kind, step) for step in steps)
    for kind in ChangeKind:
        changed = of_kind.get(kind, [])
        causes = Counter(
            "unexplained" if step.unexplained else f"by {step.causes[0].short}"
            for step in changed
            if kind in TIMED
        ).most_common()
        by = ", ".join(f"{count} {text}" if len(causes) > 1 else text for text, count in causes)
        if changed or kind in TIMED:
            parts.append(f"{len(changed)} {kind.label}" + (f" ({by})" if by else ""))
    return ", ".join(parts)
