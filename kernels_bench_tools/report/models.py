"""Models: the calls of their forward passes, and what this report measured of them."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import (
    CONFIGS,
    DERIVED,
    RANKS,
    ModelTask,
    ModelTasks,
    Phase,
    derived_folder,
    model_keys,
    read_model_tasks,
)
from kernels_bench_tools.records.model_workloads import (
    OPERATORS,
    blocks_of,
    called_workload,
    compared_axes,
    operator_of_module,
)
from kernels_bench_tools.records.settings import OPERATORS as OWN_OPERATORS
from kernels_bench_tools.records.settings import find_settings, operator_modules
from kernels_bench_tools.records.summary import (
    DeviceSummary,
    Gain,
    Point,
    Prediction,
    Row,
    WorkloadSummary,
    predict,
)
from kernels_bench_tools.report.imports import Module, imports_of_models
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.text import grouped

_ABOUT = ("ranks", "phase", "kernel", "paths", "inputs", "calls", "operator")
_RESULT = (
    "device",
    "workload",
    "implementation",
    "p50_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "verdict",
)


@dataclass(frozen=True)
class Result:
    """The fastest implementation on one workload and device: correct, ranked and not approximate."""

    view: DeviceSummary
    workload: WorkloadSummary
    row: Row
    point: Point

    @property
    def p50_ms(self) -> float:
        """The median of one call in ms."""
        return self.point.p50_ms or 0.0

    @property
    def baseline_ms(self) -> float:
        """The baseline's median in ms, or this one's without a baseline."""
        return self.p50_ms * (self.point.speedup or 1.0)


@dataclass(frozen=True)
class Call:
    """Calls of one kernel, or of one block or layer, with the same shapes."""

    task: ModelTask
    wanted: WorkloadSummary | None
    """The workload with these shapes, without a name; None if no operator computes it."""
    operator: OperatorReport | None
    """The operator of this project that computes it."""
    results: Mapping[str, Result]
    """The fastest results, by the slug of the device."""
    tried: Set[str]
    """The devices on which such a workload was measured, by slug."""

    @property
    def sizes(self) -> str:
        """The group and the axes of its workload, such as ``Linear, tokens 1, in_features 4096``."""
        wanted = self.wanted or WorkloadSummary(name="")
        axes = {
            name: value for name, value in wanted.axes.items() if name != "function" and value is not False
        }
        texts = [name if value is True else f"{name} {value}" for name, value in axes.items()]
        return ", ".join(filter(None, [wanted.group, *texts]))

    def baseline_ms(self, device: str) -> float:
        """Return the baseline's time for all these calls of a forward pass on a device; 0 if it is not known."""
        return self.task.calls * self.results[device].baseline_ms if device in self.results else 0.0


@dataclass
class ModuleNode:
    """A module in the tree of a model."""

    path: str
    """Path of the module, relative to the module that contains it."""
    level: int
    class_name: str
    calls: int = 0
    """Number of calls in a forward pass."""
    baseline_ms: Counter[str] = field(default_factory=Counter)
    """The baselines' time for the measured calls in it, by the slug of the device."""
    children: list[ModuleNode] = field(default_factory=list)


@dataclass(frozen=True)
class PhaseReport:
    """A forward pass."""

    phase: Phase
    calls: Sequence[Call]
    """Calls of kernels, those that take the baselines most time first."""
    blocks: Sequence[Call]
    """Calls of modules of higher levels that an operator computes; their time contains that of kernels."""

    @cached_property
    def tree(self) -> ModuleNode:
        """The whole model, with its modules."""
        nodes: dict[str, ModuleNode] = {}
        for task in self.phase.tasks:
            for path, calls in task.paths.items():
                node = nodes.setdefault(path, ModuleNode(path, task.level, task.module))
                node.calls += calls
        for call in self.calls:
            for path, calls in call.task.paths.items():
                for device, result in call.results.items():
                    nodes[path].baseline_ms[device] += calls * result.baseline_ms  # type: ignore[assignment]
        for path in sorted(nodes.keys() - {""}, reverse=True):  # inner modules before those that they are in
            outer = path.rpartition(".")[0]
            while outer not in nodes:  # a container such as "model.layers" is in no level
                outer = outer.rpartition(".")[0]
            nodes[path].path = path[len(outer) :].lstrip(".")
            nodes[outer].children.insert(0, nodes[path])
            nodes[outer].baseline_ms.update(nodes[path].baseline_ms)
        return nodes[""]

    def predicted(self, device: str) -> Prediction | None:
        """Return what the fastest implementations give together on a device, as `kbt choose`; None without any."""
        found = [(call.task.calls, call.results[device]) for call in self.calls if device in call.results]
        return predict(
            [
                Gain(calls, one.baseline_ms, one.p50_ms, one.point.speedup_low, one.point.speedup_high)
                for calls, one in found
            ]
        )

    def share(self, call: Call, device: str) -> float:
        """Return the share of calls in the baselines' time for all calls that were measured on a device."""
        return call.baseline_ms(device) / sum(one.baseline_ms(device) for one in self.calls)

    def measured(self, device: str) -> int:
        """Return how many of ``calls`` were measured on a device."""
        return sum(device in call.results for call in self.calls)


@dataclass(frozen=True)
class RankReport:
    """The forward passes of one of several tensor-parallel ranks, or of the whole model."""

    ranks: int
    parameters: int
    """Number of parameters of the rank."""
    phases: Sequence[PhaseReport]

    @property
    def calls(self) -> list[Call]:
        """The calls of all phases, of kernels and of blocks."""
        return [call for phase in self.phases for call in (*phase.calls, *phase.blocks)]


@dataclass(frozen=True)
class ModelReport:
    """A model."""

    tasks: ModelTasks
    config: Mapping[str, Any]
    """Its configuration, with Hugging Face's names."""
    measured: _Measured

    @property
    def key(self) -> str:
        """Its name in paths and commands."""
        return self.tasks.model

    @property
    def experts(self) -> int:
        """Number of experts in each layer; 0 if it has none."""
        return int(self.config.get("num_experts") or self.config.get("num_local_experts") or 0)

    @cached_property
    def whole(self) -> RankReport:
        """The model on one GPU."""
        return self._rank(1, self.tasks)

    @cached_property
    def splits(self) -> list[RankReport]:
        """The model on one GPU, then its rank of each number of GPUs over which it can be split."""
        sizes = [ranks for ranks in RANKS[1:] if (derived_folder(ranks) / f"{self.key}.json").is_file()]
        return [self.whole, *(self._rank(ranks, read_model_tasks(self.key, ranks)) for ranks in sizes)]

    @property
    def results(self) -> list[Result]:
        """All results of its calls."""
        return [found for split in self.splits for call in split.calls for found in call.results.values()]

    @cached_property
    def devices(self) -> list[Device]:
        """The devices on which any of its calls was measured: GPUs first, then by number of kernels and slug."""
        found = {result.view.device.slug: result.view.device for result in self.results}
        return sorted(
            found.values(), key=lambda one: (one.kind == "cpu", -self.measured_on(one.slug), one.slug)
        )

    @property
    def kernels(self) -> int:
        """Number of kernels of all phases, on one GPU."""
        return sum(len(phase.calls) for phase in self.whole.phases)

    def measured_on(self, device: str) -> int:
        """Return how many kernels of all phases have a result on a device, on one GPU."""
        return sum(phase.measured(device) for phase in self.whole.phases)

    @property
    def not_measured(self) -> list[OperatorReport]:
        """The operators that measured some call of the model on no device."""
        calls = (call for call in self.whole.calls if not call.results)
        return list({call.operator.folder: call.operator for call in calls if call.operator}.values())

    @property
    def classes(self) -> set[str]:
        """The classes of all modules that some phase calls."""
        return {task.module for phase in self.tasks.phases for task in phase.tasks}

    def _rank(self, ranks: int, tasks: ModelTasks) -> RankReport:
        phases = [
            PhaseReport(
                phase,
                sorted(
                    self._calls(phase, [task for task in phase.tasks if task.level == 1]),
                    key=lambda call: -max(map(call.baseline_ms, call.results), default=0.0),
                ),
                [call for call in self._calls(phase, blocks_of(phase)) if call.operator],
            )
            for phase in tasks.phases
        ]
        return RankReport(ranks, tasks.parameters, phases)

    def _calls(self, phase: Phase, tasks: Iterable[ModelTask]) -> Iterator[Call]:
        for task in tasks:
            wanted, name = called_workload(phase, task), operator_of_module(task.module)
            if wanted is None or name not in self.measured:
                yield Call(task, wanted, None, {}, frozenset())
                continue
            operator, results = self.measured[name]
            found = _fastest(results.get(_key(wanted), ()), wanted)
            passed = {device: result for device, result in found.items() if result is not None}
            yield Call(task, wanted, operator, passed, found.keys())


_Key = tuple[str, frozenset[tuple[str, str]]]
_Places = Mapping[_Key, Sequence[tuple[DeviceSummary, int]]]
"""The workloads that are the same for a model's kernel, as numbers in their views."""
_Measured = Mapping[str, tuple[OperatorReport, _Places]]
"""Operators of the report, by the name of the one that comes with this package."""


@dataclass(frozen=True)
class Models:
    """The models whose kernels operators of the report measure; none without such an operator."""

    operators: Mapping[str, OperatorReport]
    """Operators of the report, by the name of the one that comes with this package."""

    @cached_property
    def keys(self) -> list[str]:
        """The names of the models."""
        return model_keys(DERIVED) if self.operators else []

    @cached_property
    def reports(self) -> Mapping[str, ModelReport]:
        """The models by their names; read only if a page that shows them is rendered."""
        measured = {name: (operator, _places(operator)) for name, operator in self.operators.items()}
        return {
            key: ModelReport(
                read_model_tasks(key), json.loads((CONFIGS / f"{key}.json").read_bytes()), measured
            )
            for key in self.keys
        }

    @cached_property
    def imports(self) -> Mapping[Module, Sequence[Module]]:
        """The modules that each module of the models uses."""
        return imports_of_models()

    def used_by(self, operator: OperatorReport) -> Iterator[tuple[ModelReport, list[tuple[str, Call]]]]:
        """Yield the models that call what an operator computes, each with the phases and calls on one GPU."""
        if operator.folder not in {one.folder for one in self.operators.values()}:
            return
        for model in self.reports.values():
            calls = [
                (phase.phase.name, call)
                for phase in model.whole.phases
                for call in (*phase.calls, *phase.blocks)
            ]
            own = [one for one in calls if one[1].operator and one[1].operator.folder == operator.folder]
            if own:
                yield model, own


def find_models(root: Path, operators: Iterable[OperatorReport]) -> Models:
    """Return the models of a report.

    A module of the project's own that has the name of an operator of this package is another operator, unless it has
    workload sets of models, too.
    """
    settings = find_settings(root)
    own = operator_modules(
        root / (settings[1].get("operators", OWN_OPERATORS) if settings else OWN_OPERATORS)
    )
    others = {name for name, file in own.items() if b"model_sets(" not in file.read_bytes()}
    named = ((operator.folder.rpartition("/")[2], operator) for operator in operators)
    return Models({name: operator for name, operator in named if name in OPERATORS - others})


def _places(operator: OperatorReport) -> _Places:
    """Return the forward workloads of an operator by what is compared with the kernels of models."""
    return grouped(
        (_key(workload), (view, number))
        for view in operator.views
        for number, workload in enumerate(view.workloads)
        if not workload.mode
    )


def _key(workload: WorkloadSummary) -> _Key:
    axes = compared_axes(workload)
    return workload.group, frozenset((name, repr(value)) for name, value in axes.items())


def _fastest(
    places: Iterable[tuple[DeviceSummary, int]], wanted: WorkloadSummary
) -> dict[str, Result | None]:
    """Return the fastest result by device, of a workload with equal axes if any, and of several that with most results.

    None if none can be chosen.
    """
    found: dict[str, Result | None] = {}
    able = [(view, view.workloads[number], view.eligible(number)) for view, number in places]
    for view, workload, results in sorted(able, key=lambda one: (one[1].axes != wanted.axes, -len(one[2]))):
        best = Result(view, workload, *results[0]) if results else None
        found[view.device.slug] = found.get(view.device.slug) or best
    return found


def calls_csv(model: ModelReport) -> bytes:
    """Return the calls of a model as CSV: a line for each device, or one without results."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_ABOUT, *_RESULT, "calls_ms", "share"])
    for split in model.splits:
        for phase in split.phases:
            for call in phase.calls:
                table.writerows(_csv_lines(split.ranks, phase, call))
    return text.getvalue().encode()


def _csv_lines(ranks: int, phase: PhaseReport, call: Call) -> Iterator[list[Any]]:
    task = call.task
    operator = call.operator.folder if call.operator else ""
    about = [ranks, phase.phase.name, task.module, "; ".join(task.paths), "; ".join(task.inputs), task.calls]
    about.append(operator)
    for device, found in call.results.items():
        point = found.point
        numbers = [point.p50_ms, point.speedup, point.speedup_low, point.speedup_high, point.verdict.value]
        names = [device, found.workload.name, found.row.implementation]
        yield [*about, *names, *numbers, task.calls * found.p50_ms, phase.share(call, device)]
    if not call.results:
        yield [*about, *[""] * (len(_RESULT) + 2)]
