"""The fastest correct implementation for a shape, or for each kernel of a model, according to summaries; also as code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log2
from typing import Any, NamedTuple

import msgspec

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.model import REPLACEABLE_OPERATORS, CalledWorkload, ModelTask, Phase
from kernels_bench_tools.records.record import Flag, Judged, Status
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    DeviceSummary,
    Point,
    Result,
    Summary,
    Verdict,
    WorkloadSummary,
)
from kernels_bench_tools.results.speedup import across_runs
from kernels_bench_tools.results.views import DRAWN
from kernels_bench_tools.stats import ratio_of, verdict_of
from kernels_bench_tools.text.numbers import times_with_interval
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import did_you_mean

NO_OPERATOR = "no operator computes it"
Axes = Mapping[str, int | bool | str]


def axes_of(workload: WorkloadSummary | CalledWorkload) -> dict[str, Any]:
    """Return the axes and the dtype; also ``rows``, batch times sequence length, except for attention."""
    axes = dict(workload.axes)
    batch, seq_len = axes.get("batch"), axes.get("seq_len")
    if isinstance(batch, int) and isinstance(seq_len, int) and "kv_len" not in axes:
        axes["rows"] = batch * seq_len
    return {**axes, "dtype": workload.dtype}


class Choice(Point, kw_only=True):
    """The fastest implementation of a measured workload: correct, ranked and not approximate."""

    operator: str
    axes: dict[str, int | bool | str]
    """Of the workload, with its type."""
    implementation: str
    baseline: str
    baseline_ms: float | None
    ties: list[str]
    """Implementations that may be as fast: the choice is not shown to be faster than they are."""
    faster: dict[str, str]
    """Implementations with a shorter time that cannot be chosen, and why."""
    avoid: dict[str, str]
    """Implementations that are slower than the baseline or failed, and how."""
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
    share: float | None = None
    """Of the time of all kernels that have one, with the baselines."""

    @property
    def baselines_ms(self) -> float:
        """Time of all calls with the baseline; 0 if it has none."""
        return self.calls * (self.choice.baseline_ms or 0.0) if self.choice else 0.0


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

    @property
    def gain(self) -> Estimate:
        return Estimate.of(self.speedup, self.speedup_low, self.speedup_high)


class PhaseChoice(msgspec.Struct, kw_only=True):
    phase: str
    tasks: list[TaskChoice]
    blocks: list[TaskChoice]
    """Blocks and layers that an operator computes. They contain kernels, and count in no share or prediction."""
    prediction: Prediction | None
    """Over the tasks with a share; None if there are none."""
    effect: list[str]
    """Implementations that are faster than the baseline, one of each operator, as ``kbt effect`` is given them."""


@dataclass(frozen=True)
class MeasuredWorkload:
    """A workload in a view of a device, and by which factors its sizes differ from those asked for."""

    operator: str
    view: DeviceSummary
    number: int
    """Index of the workload in the view."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Its size divided by the one asked for, by axis."""

    @property
    def workload(self) -> WorkloadSummary:
        return self.view.workloads[self.number]

    @cached_property
    def results(self) -> list[Result]:
        points = ((row, row.points[self.number]) for row in self.view.rows)
        return [Result(self.operator, self.view, row, self.workload, point) for row, point in points]

    @cached_property
    def eligible(self) -> list[Result]:
        """The results that can be chosen, the fastest first."""
        able = (result for result in self.results if result.point.p50_ms and not _obstacle(result))
        return sorted(able, key=lambda result: result.point.p50_ms or inf)

    @property
    def near(self) -> str:
        axes = axes_of(self.workload)
        differing = {name: factor for name, factor in self.factors.items() if factor != 1}
        return "; ".join(
            f"{name} {axes[name]}, {f'{factor:,.0f}' if factor >= 100 else f'{factor:.3g}'}×"
            for name, factor in differing.items()
        )


def _obstacle(result: Result) -> str:
    """Return why an implementation cannot be chosen for a workload; empty if it can."""
    row, point = result.row, result.point
    if point.status is not Status.OK:
        return point.status.label
    if other := [flag for flag in (Flag.APPROXIMATE, Flag.ZEROS_PASS) if flag in point.flags]:
        return other[0].label
    # Of a drawn shape, it says nothing that others failed.
    if row.rank is not None or (result.workload.set == DRAWN and row.judged is not Judged.NOT):
        return ""
    return f"not ranked: passed {row.passed} of {row.total} workloads"


def read_axes(operator: str, text: str, summary: Summary) -> dict[str, int | bool | str]:
    """Return the axes of ``hidden_dim=5120,dtype=bfloat16``; raise ``OperatorError`` for one that is not known."""
    views = (*summary.devices, *summary.drawn)
    workloads = [workload for view in views for workload in view.workloads]
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


def nearest(summary: Summary, device: str, axes: Axes) -> list[MeasuredWorkload]:
    """Return the measured forward workloads of a device that are nearest to a shape, all of the same distance.

    Sizes may differ; words such as ``function``, ``causal`` and ``dtype`` may not. Axes that are not named may have
    any value. Of equal workloads in several sets, it is the one with most results.
    """
    by_distance: dict[float, list[MeasuredWorkload]] = {}
    for measured in _forward(summary.operator, (*summary.devices, *summary.drawn), device):
        own = axes_of(measured.workload)
        words = {
            name
            for name, value in axes.items()
            if isinstance(value, bool | str) or isinstance(own.get(name), bool | str | None)
        }
        passed = any(result.point.status is Status.OK for result in measured.results)
        if passed and all(own.get(name) == axes[name] for name in words):
            factors = {name: own[name] / size for name, size in axes.items() if name not in words}
            distance = sum(abs(log2(factor)) for factor in factors.values())
            by_distance.setdefault(round(distance, 9), []).append(replace(measured, factors=factors))
    closest = by_distance[min(by_distance)] if by_distance else ()
    equal = grouped(((each.workload.group, *axes_of(each.workload).items()), each) for each in closest)
    return [max(sets, key=lambda each: len(each.eligible)) for sets in equal.values()]


def _forward(operator: str, views: Iterable[DeviceSummary], device: str) -> Iterator[MeasuredWorkload]:
    for view in views:
        for number, workload in enumerate(view.workloads):
            if view.device.slug == device and not workload.mode:
                yield MeasuredWorkload(operator, view, number)


def choose(measured: MeasuredWorkload) -> Choice | None:
    if not measured.eligible:
        return None
    view, (fastest, *others) = measured.view, measured.eligible
    best, on_cpu = fastest.point, view.device.kind == "cpu"
    times = {result.row.implementation: result.point.p50_ms for result in measured.eligible}
    return Choice(
        **msgspec.structs.asdict(best),
        operator=measured.operator,
        axes=axes_of(measured.workload),
        implementation=fastest.row.implementation,
        baseline=view.baseline,
        baseline_ms=times.get(view.baseline),
        ties=[other.row.implementation for other in others if _is_tie(other.point, best, on_cpu)],
        faster={
            result.row.implementation: why
            for result in measured.results
            if (result.point.p50_ms or inf) < (best.p50_ms or 0.0) and (why := _obstacle(result))
        },
        avoid={
            result.row.implementation: why
            for result in measured.results
            if (why := _reason_against(result.point))
        },
        view=view.key,
        near=measured.near,
    )


def _reason_against(point: Point) -> str:
    if point.status is Status.OK:
        return times_with_interval(point.gain) if point.verdict is Verdict.SLOWER else ""
    return "" if point.status in {Status.UNSUPPORTED, Status.ABSENT, Status.INVALID} else point.status.label


def _is_tie(other: Point, best: Point, on_cpu: bool) -> bool:
    """Return whether the times of two do not differ significantly; those of fewer than three processes never do."""
    theirs, ours = other.latency, best.latency
    if not theirs or not ours or min(other.processes, best.processes) < FEWEST_PROCESSES:
        return True
    ratio = ratio_of(theirs, ours)
    if Verdict.SEPARATE in {other.verdict, best.verdict}:
        ratio = across_runs(ratio)
    return verdict_of(ratio, on_cpu=on_cpu) is not Verdict.FASTER


class Measurements:
    def __init__(self, summaries: Mapping[str, Summary], device: str) -> None:
        self.summaries = summaries
        self.device = device
        self._equal = {
            operator: grouped(
                (_compared(each.workload), each) for each in _forward(operator, summary.devices, device)
            )
            for operator, summary in summaries.items()
        }

    def equal(self, wanted: CalledWorkload) -> MeasuredWorkload | None:
        """Return the workload of a call's sizes, type and layout, batch times length as one size; None if there is none.

        Of several, it is one with results that can be chosen, with equal axes if any, and with most results.
        """

        def order(measured: MeasuredWorkload) -> tuple[bool, bool, int]:
            able = len(measured.eligible)
            return able > 0, measured.workload.axes == wanted.axes, able

        return max(self.all_equal(wanted), key=order, default=None)

    def all_equal(self, wanted: CalledWorkload) -> Sequence[MeasuredWorkload]:
        return self._equal.get(wanted.operator, {}).get(_compared(wanted), ())

    def fastest(self, wanted: CalledWorkload) -> Result | None:
        """Return the result that is chosen for a call."""
        measured = self.equal(wanted)
        return measured.eligible[0] if measured and measured.eligible else None

    def called(self, phases: Iterable[Phase]) -> Iterator[tuple[str, MeasuredWorkload]]:
        """Yield the workload of each call of a model that was measured, with the name of its phase."""
        for phase in phases:
            for task in phase.tasks:
                if task.workload and (measured := self.equal(task.workload)):
                    yield phase.name, measured


def _compared(workload: WorkloadSummary | CalledWorkload) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the group and the axes in which a call is compared with a workload: ``rows`` instead of batch and length."""
    axes = axes_of(workload)
    left_out = {"batch", "seq_len"} if "rows" in axes else set()
    return workload.group, frozenset((name, repr(axes[name])) for name in axes.keys() - left_out)


def choose_for_phase(phase: Phase, measurements: Measurements) -> PhaseChoice:
    """Return the fastest implementation for each kernel of a forward pass, of workloads with equal sizes and type."""
    tasks = [_choose_for_task(task, measurements) for task in phase.kernels]
    timed = [task for task in tasks if task.baselines_ms]
    whole = sum(task.baselines_ms for task in timed)
    for task in timed:
        task.share = task.baselines_ms / whole
    return PhaseChoice(
        phase=phase.name,
        tasks=tasks,
        blocks=[_choose_for_task(task, measurements) for task in phase.blocks],
        prediction=_predict(timed),
        effect=_worth_an_effect(tasks),
    )


def _choose_for_task(task: ModelTask, measurements: Measurements) -> TaskChoice:
    operator, wanted = task.operator, task.workload
    made = TaskChoice(module=task.module, inputs=task.inputs, calls=task.calls, operator=operator)
    if wanted is None:
        made.reason = NO_OPERATOR
        return made
    measured = measurements.equal(wanted)
    made.tried, made.choice = measured is not None, choose(measured) if measured else None
    if made.choice is None:
        no_result = f"measured, but no result of {operator} is eligible"
        made.reason = no_result if measured else f"no record of {operator} with this shape"
    elif measured and measured.workload.axes != wanted.axes:
        made.choice.near = "same number of rows, different batch and seq_len"
    return made


def _predict(tasks: Sequence[TaskChoice]) -> Prediction | None:
    """Return the sum of calls times the baselines' time, divided by the same of the fastest; None without any."""
    choices = [task.choice for task in tasks if task.choice]
    before = [task.baselines_ms for task in tasks]
    after = sum(task.calls * (choice.p50_ms or 0.0) for task, choice in zip(tasks, choices, strict=True))
    if not after:
        return None

    def together(speedups: Sequence[float | None]) -> float | None:
        known = [speedup for speedup in speedups if speedup]
        if len(known) < len(speedups):
            return None
        return sum(before) / sum(ms / speedup for ms, speedup in zip(before, known, strict=True))

    return Prediction(
        tasks=len(tasks),
        calls=sum(task.calls for task in tasks),
        baseline_ms=sum(before),
        ms=after,
        speedup=sum(before) / after,
        speedup_low=together([choice.speedup_low for choice in choices]),
        speedup_high=together([choice.speedup_high for choice in choices]),
    )


def unmeasured(phases: Iterable[PhaseChoice], measurements: Measurements) -> list[str]:
    """Return the operators of the project that have no result for the shape of some call."""
    tasks = (task for phase in phases for task in (*phase.tasks, *phase.blocks) if task.choice is None)
    return list(dict.fromkeys(it.operator for it in tasks if it.operator in measurements.summaries))


def _worth_an_effect(tasks: Sequence[TaskChoice]) -> list[str]:
    """Return, for each operator, the chosen implementation that saves most; ``kbt effect`` takes one of an operator."""
    saved: dict[str, tuple[float, str]] = {}
    # In a model of transformers only what a module computes inside is replaced, not its products.
    for task in [task for task in tasks if ": " in task.module] or tasks:
        choice = task.choice
        if choice and task.operator in REPLACEABLE_OPERATORS and (choice.speedup_low or 0.0) > 1:
            saves = task.calls * ((choice.baseline_ms or 0.0) - (choice.p50_ms or 0.0))
            saved[task.operator] = max(saved.get(task.operator, (0.0, "")), (saves, choice.implementation))
    return [f"{operator}/{name}" for operator, (_, name) in saved.items()]


class _Layer(NamedTuple):
    """A layer of transformers for which the Hub has a kernel of which there are measurements."""

    operator: str
    implementation: str
    kernel: str
    version: int


_LAYERS = {
    "RMSNorm": _Layer("rms_norm", "liger_rms_norm", "kernels-community/liger-kernels:LigerRMSNorm", 3),
    "SwiGLUMLP": _Layer("activation", "liger_swiglu", "kernels-community/liger-kernels:LigerSwiGLUMLP", 3),
    "rotary_pos_emb": _Layer(
        "rotary", "hf_kernels_rotary", "kernels-community/rotary:apply_rotary_transformers", 2
    ),
}
"""By the names of transformers' own table, with the implementation here that launches the same kernels."""


def kernel_config(title: str, called: Iterable[tuple[str, MeasuredWorkload]], notes: Sequence[str]) -> str:
    """Return Python code with a ``KernelConfig`` of the layers whose kernel is faster for some and slower for none.

    ``called`` are the workloads that a model calls, each with the phase; ``notes`` are comments.
    """
    by_operator = grouped((measured.operator, (phase, measured)) for phase, measured in called)
    layers, remarks = "", list[str]()
    for name, layer in _LAYERS.items():
        points = [
            (phase, result.point)
            for phase, measured in by_operator.get(layer.operator, ())
            for result in measured.results
            if result.row.implementation == layer.implementation
        ]
        verdicts = {point.verdict for _, point in points}
        taken = Verdict.FASTER in verdicts and Verdict.SLOWER not in verdicts
        taken = taken and all(point.status is Status.OK for _, point in points)
        remarks.append(f"{name}: {layer.operator}/{layer.implementation}{'' if taken else ' is left out'}")
        if taken:
            layers += f'        "{name}": {{"cuda": ("{layer.kernel}", {{"version": {layer.version}}})}},\n'
        for phase, point in points:
            gain = f"{times_with_interval(point.gain)}, {point.verdict.label}"
            outcome = gain if point.status is Status.OK else point.status.label
            remarks.append(f"  {phase}, {point.workload}: {outcome}")
    comments = "\n".join(f"# {line}" for line in [title, *remarks, *notes])
    return f"""\
{comments}
from transformers import KernelConfig

kernel_config = KernelConfig(
    {{
{layers}    }},
    inherit_mapping=False,
)
# model.set_use_kernels(True, kernel_config)"""
