"""The fastest correct implementation for a shape, or for each kernel of a model, according to summaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, log2, prod
from typing import NamedTuple

import msgspec

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.records.model import ModelTask, Phase
from kernels_bench_tools.records.model_workloads import (
    REPLACEABLE,
    axes_of,
    blocks_of,
    called_workload,
    compared_axes,
    operator_of_module,
)
from kernels_bench_tools.records.record import Flag, Status
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    DeviceSummary,
    Estimate,
    Point,
    Row,
    Summary,
    Verdict,
)
from kernels_bench_tools.records.summary import WorkloadSummary as Workload
from kernels_bench_tools.results.compare import REPRODUCIBLE
from kernels_bench_tools.results.effects import EffectRow
from kernels_bench_tools.stats import CPU_STRETCH, ratio_of, verdict_of
from kernels_bench_tools.text import did_you_mean, grouped

NO_OPERATOR = "no operator computes it"
_NOT_IN_PROPORTION = {"kv_heads", "experts", "vocabulary", "blocks", "block_size"}
"""Sizes to which the operations of a call are not proportional."""

FARTHEST = 32
"""No time is estimated from a workload of which a size is more than this many times larger or smaller."""

Axes = Mapping[str, int | bool | str]


class Choice(Point, kw_only=True):
    """The fastest implementation of a measured workload: correct, ranked and not approximate."""

    operator: str
    dtype: str
    implementation: str
    baseline: str
    baseline_ms: float | None
    ties: list[str]
    """Implementations that may be as fast: the choice is not shown to be faster than they are."""
    faster: dict[str, str]
    """Implementations with a shorter time that cannot be chosen, and why."""
    candidates: list[str]
    """All implementations of the function that support some workload of the device, whatever their results."""
    view: str = ""
    """Key of the view that has the workload, among those of its device."""
    near: str = ""
    """How the workload differs from the one asked for, such as ``hidden_dim 4096, 0.8×``; empty if it does not."""


class TaskChoice(msgspec.Struct, kw_only=True):
    module: str
    inputs: list[str]
    calls: int
    """Number of calls in a forward pass."""
    operator: str = ""
    choice: Choice | None = None
    reason: str = ""
    """Why there is no choice."""
    tried: bool = False
    """Whether a workload with its own shape was measured, whatever the results."""
    scale: float = 1.0
    """Its work divided by that of the near workload; the times below are those of the near workload times this."""
    ms: float | None = None
    """Time of one call; None if the near workload is too far for one, or has no result of the baseline."""
    baseline_ms: float | None = None
    share: float | None = None
    """Of the time of all kernels that have one, with the baselines."""


class Prediction(msgspec.Struct, kw_only=True):
    """What the fastest implementations of some kernels give together (Amdahl's law over these kernels)."""

    tasks: int
    calls: int
    baseline_ms: float
    """Sum over the calls of a forward pass."""
    ms: float
    speedup: float
    speedup_low: float | None
    """With the lower ends of all intervals; None if one is not known."""
    speedup_high: float | None


class PhaseChoice(msgspec.Struct, kw_only=True):
    phase: str
    tasks: list[TaskChoice]
    blocks: list[TaskChoice]
    """Blocks and layers that an operator computes. They contain kernels, and count in no share or prediction."""
    measured: Prediction | None
    """Over the tasks that were measured with their own shape; None if there are none."""
    estimated: Prediction | None
    """Over these and those with only a near workload; None if there are none of the latter."""
    effect: list[str]
    """Implementations that are faster than the baseline, one of each operator, as ``kbt effect`` is given them."""
    measured_effect: list[EffectRow] = []
    """What these change in the whole model, if that was measured."""


class Measured(NamedTuple):
    """A workload in a view of a device, and by which factors its sizes differ from those asked for."""

    operator: str
    view: DeviceSummary
    number: int
    """Index of the workload in the view."""
    factors: dict[str, float]
    """Measured size divided by the one asked for, by axis."""

    @property
    def workload(self) -> Workload:
        return self.view.workloads[self.number]

    @property
    def eligible(self) -> list[tuple[Row, Point]]:
        """The implementations that can be chosen, the fastest first."""
        points = [(row, row.points[self.number]) for row in self.view.rows]
        able = [pair for pair in points if pair[1].p50_ms and not _obstacle(*pair)]
        return sorted(able, key=lambda pair: pair[1].p50_ms or inf)

    @property
    def near(self) -> str:
        axes = axes_of(self.workload)
        differing = [(name, factor) for name, factor in self.factors.items() if factor != 1]
        texts = (f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}" for _, factor in differing)
        return "; ".join(
            f"{name} {axes[name]}, {text}×" for (name, _), text in zip(differing, texts, strict=True)
        )


def _obstacle(row: Row, point: Point) -> str:
    """Return why an implementation cannot be chosen for a workload; empty if it can."""
    if point.status is not Status.OK:
        return point.status.label
    if Flag.APPROXIMATE in point.flags:
        return Flag.APPROXIMATE.label
    return "" if row.rank is not None else f"no rank, it passed {row.passed} of {row.total} workloads"


def read_axes(operator: str, text: str, summary: Summary) -> dict[str, int | bool | str]:
    """Return the axes of ``hidden_dim=5120,dtype=bfloat16``; raise ``OperatorError`` for one that is not known."""
    workloads = [workload for view in summary.devices for workload in view.workloads]
    known = grouped(axis for workload in workloads for axis in axes_of(workload).items())
    axes: dict[str, int | bool | str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = map(str.strip, part.partition("="))
        where = f"--axes {part}"
        if name in axes:
            raise OperatorError(where, f"{name} is given twice", "One value for each axis")
        if name not in known:
            what, expected = f"{operator} has no axis {name!r}", f"AXIS=VALUE with one of {', '.join(known)}"
            raise OperatorError(where, what, expected, did_you_mean(name, known))
        if all(isinstance(measured, bool | str) for measured in known[name]):
            words = {str(measured).lower(): measured for measured in known[name]}
            if value.lower() not in words:
                raise OperatorError(where, f"no measured workload has {part}", ", ".join(sorted(words)))
            axes[name] = words[value.lower()]
        elif value.isdecimal() and int(value) > 0:
            axes[name] = int(value)
        else:
            raise OperatorError(where, f"{value!r} is not a size", f"A positive integer, such as {name}=4096")
    return axes


def nearest(summary: Summary, device: str, axes: Axes, group: str | None = None) -> list[Measured]:
    """Return the measured forward workloads of a device that are nearest to a shape, all of the same distance.

    Sizes may differ; words such as ``function``, ``causal`` and ``dtype`` may not. Axes that are not named may have
    any value. With ``group``, only workloads of it. Of equal workloads in several sets, it is the one with most results.
    """
    by_distance: dict[float, list[Measured]] = {}
    for measured in _forward(summary, device):
        have, factors = axes_of(measured.workload), measured.factors
        alike = group in {None, measured.workload.group}
        for name, value in axes.items():
            if isinstance(value, bool | str) or isinstance(have.get(name), bool | str | None):
                alike = alike and value == have.get(name)
            else:
                factors[name] = have[name] / value
        if alike and any(row.points[measured.number].status is Status.OK for row in measured.view.rows):
            distance = sum(abs(log2(factor)) for factor in factors.values())
            by_distance.setdefault(round(distance, 9), []).append(measured)
    closest = by_distance[min(by_distance)] if by_distance else ()
    equal = grouped(((each.workload.group, *axes_of(each.workload).items()), each) for each in closest)
    return [max(sets, key=lambda each: len(each.eligible)) for sets in equal.values()]


def _forward(summary: Summary, device: str) -> Iterator[Measured]:
    for view in summary.devices:
        for number, workload in enumerate(view.workloads):
            if view.device.slug == device and not workload.mode:
                yield Measured(summary.operator, view, number, {})


def choose(measured: Measured) -> Choice | None:
    view = measured.view
    points = [(row, row.points[measured.number]) for row in view.rows]
    able = {row.implementation: point for row, point in measured.eligible}
    if not able:
        return None
    name, best = next(iter(able.items()))
    baseline = able.get(view.baseline)
    stretch = CPU_STRETCH if view.device.kind == "cpu" else 1.0
    return Choice(
        **msgspec.structs.asdict(best),
        operator=measured.operator,
        dtype=measured.workload.dtype,
        implementation=name,
        baseline=view.baseline,
        baseline_ms=baseline.p50_ms if baseline else None,
        ties=[other for other, point in able.items() if other != name and _is_tie(point, best, stretch)],
        faster={
            row.implementation: why
            for row, point in points
            if (point.p50_ms or inf) < (best.p50_ms or 0.0) and (why := _obstacle(row, point))
        },
        candidates=_supported(view),
        view=view.key,
        near=measured.near,
    )


def _supported(view: DeviceSummary) -> list[str]:
    """Return the implementations that support some workload of a view; on a GPU not those for CPUs."""
    return [
        row.implementation
        for row in view.rows
        if any(point.status is not Status.UNSUPPORTED for point in row.points)
    ]


def _is_tie(other: Point, best: Point, stretch: float) -> bool:
    """Return whether the times of two do not differ significantly; those of fewer than three processes never do."""
    if min(other.processes, best.processes) < FEWEST_PROCESSES:
        return True
    theirs, ours = (
        Estimate(point.p50_ms or inf, point.ci_low_ms or 0.0, point.ci_high_ms or inf)
        for point in (other, best)
    )
    ratio = ratio_of(theirs, ours)
    if Verdict.SEPARATE in {other.verdict, best.verdict}:
        ratio = Estimate(ratio.value, ratio.low / (1 + REPRODUCIBLE), ratio.high * (1 + REPRODUCIBLE))
    return verdict_of(ratio, stretch) is not Verdict.FASTER


class Measurements:
    """What the summaries of operators have of the forward passes on a device."""

    def __init__(self, summaries: Mapping[str, Summary], device: str) -> None:
        self.summaries = summaries
        self.device = device
        self._equal = {
            operator: grouped((_compared(each.workload), each) for each in _forward(summary, device))
            for operator, summary in summaries.items()
        }

    def equal(self, operator: str, wanted: Workload) -> Measured | None:
        """Return the workload of a call's sizes, type and layout, batch times length as one size; None if there is none.

        Of several, it is one with results that can be chosen, with equal axes if any, and with most results.
        """

        def order(measured: Measured) -> tuple[bool, bool, int]:
            able = len(measured.eligible)
            return able > 0, measured.workload.axes == wanted.axes, able

        return max(self.all_equal(operator, wanted), key=order, default=None)

    def all_equal(self, operator: str, wanted: Workload) -> Sequence[Measured]:
        """Return all such workloads."""
        return self._equal.get(operator, {}).get(_compared(wanted), ())


def _compared(workload: Workload) -> tuple[str, frozenset[tuple[str, str]]]:
    return workload.group, frozenset((name, repr(value)) for name, value in compared_axes(workload).items())


def choose_for_phase(phase: Phase, measurements: Measurements, *, near: bool = True) -> PhaseChoice:
    """Return the fastest implementation for each kernel of a forward pass, without ``near`` only from equal workloads."""
    tasks = [
        _choose_for_task(phase, task, measurements, near)
        for task in sorted(phase.tasks, key=lambda task: -task.calls)
        if task.level == 1
    ]
    shown = [task for task in tasks if task.ms is not None]
    whole = sum(task.calls * (task.baseline_ms or 0.0) for task in shown)
    for task in shown:
        task.share = task.calls * (task.baseline_ms or 0.0) / whole
    exact = [task for task in shown if task.choice and not task.choice.near]
    return PhaseChoice(
        phase=phase.name,
        tasks=tasks,
        blocks=[_choose_for_task(phase, task, measurements, near) for task in blocks_of(phase)],
        measured=_predict(exact),
        estimated=_predict(shown) if len(exact) < len(shown) else None,
        effect=_worth_an_effect(tasks),
    )


def _choose_for_task(phase: Phase, task: ModelTask, measurements: Measurements, near: bool) -> TaskChoice:
    operator, wanted = operator_of_module(task.module), called_workload(phase, task)
    made = TaskChoice(module=task.module, inputs=task.inputs, calls=task.calls, operator=operator)
    if wanted is None:
        made.reason = NO_OPERATOR
        return made
    measured = measurements.equal(operator, wanted)
    made.tried = measured is not None
    choice = choose(measured) if measured else None
    if choice is None and near and (summary := measurements.summaries.get(operator)):
        others = nearest(summary, measurements.device, compared_axes(wanted), wanted.group)
        measured = next(iter(others), None)
        choice = choose(measured) if measured else None
    if measured is None or choice is None:
        no_result = f"measured, but no result of {operator} is eligible"
        made.reason = no_result if measured else f"no comparable record of {operator}"
        return made
    if not choice.near and measured.workload.axes != wanted.axes:
        choice.near = "as many rows, but another batch and seq_len"
    factors = [factor for name, factor in measured.factors.items() if name not in _NOT_IN_PROPORTION]
    made.choice, made.scale = choice, 1 / prod(factors)
    if choice.p50_ms and choice.baseline_ms and all(1 / FARTHEST <= each <= FARTHEST for each in factors):
        made.ms, made.baseline_ms = choice.p50_ms * made.scale, choice.baseline_ms * made.scale
    return made


def _predict(tasks: Sequence[TaskChoice]) -> Prediction | None:
    """Return the sum of calls times the baselines' time, divided by the same of the fastest; None without any."""
    before = [task.calls * (task.baseline_ms or 0.0) for task in tasks]
    after = sum(task.calls * (task.ms or 0.0) for task in tasks)
    if not after:
        return None
    choices = [task.choice for task in tasks if task.choice]
    low, high = (
        sum(before) / sum(ms / (end or 1.0) for ms, end in zip(before, ends, strict=True))
        if all(ends)
        else None
        for ends in zip(*((choice.speedup_low, choice.speedup_high) for choice in choices), strict=True)
    )
    return Prediction(
        tasks=len(tasks),
        calls=sum(task.calls for task in tasks),
        baseline_ms=sum(before),
        ms=after,
        speedup=sum(before) / after,
        speedup_low=low,
        speedup_high=high,
    )


def unmeasured(phases: Iterable[PhaseChoice], measurements: Measurements) -> list[str]:
    """Return what to build for what has no record of its own shape: operators, or some implementations.

    An implementation of another function of the operator would fail, as it has no workload of the model.
    """
    wanted: dict[str, set[str]] = {}
    whole = {
        operator: {
            name
            for view in summary.devices
            if view.device.slug == measurements.device
            for name in _supported(view)
        }
        for operator, summary in measurements.summaries.items()
    }
    tasks = [task for phase in phases for task in (*phase.tasks, *phase.blocks)]
    for task in (task for task in tasks if task.operator in whole):
        if task.choice is None or task.choice.near:
            names = task.choice.candidates if task.choice else whole[task.operator]
            wanted.setdefault(task.operator, set()).update(names)
    return [
        target
        for operator, names in wanted.items()
        for target in (
            [operator] if names >= whole[operator] else sorted(f"{operator}/{name}" for name in names)
        )
    ]


def _worth_an_effect(tasks: Iterable[TaskChoice]) -> list[str]:
    """Return, for each operator, the chosen implementation that saves most; ``kbt effect`` takes one of an operator."""
    saved: dict[str, tuple[float, str]] = {}
    for task in tasks:
        choice = task.choice
        if choice and task.module in REPLACEABLE and choice.speedup_low and choice.speedup_low > 1:
            saves = task.calls * ((task.baseline_ms or 0.0) - (task.ms or 0.0))
            saved[task.operator] = max(saved.get(task.operator, (0.0, "")), (saves, choice.implementation))
    return [f"{operator}/{name}" for operator, (_, name) in saved.items()]
