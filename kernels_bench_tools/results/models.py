"""What was measured of models: the fastest implementation of each call of their forward passes, by device."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import (
    CONFIGS,
    DERIVED,
    RANKS,
    ModelTask,
    ModelTasks,
    Phase,
    derived_folder,
    find_model,
    model_files,
    model_keys,
    read_model_tasks,
)
from kernels_bench_tools.records.summary import Result, Summary
from kernels_bench_tools.results.choose import Measurements, Prediction, TaskChoice, choose_for_phase
from kernels_bench_tools.results.export import Value, csv_text
from kernels_bench_tools.results.history.causes import RowName
from kernels_bench_tools.text.numbers import deviation

_CSV_COLUMNS = (
    *("ranks", "phase", "kernel", "paths", "inputs", "calls", "operator"),
    *("device", "workload", "implementation", "p50_ms", "speedup", "speedup_low", "speedup_high", "verdict"),
    *("calls_ms", "share"),
)


@dataclass(frozen=True)
class ModelCall:
    """Calls of one kernel, or of one block or layer, with the same shapes."""

    task: ModelTask
    operator: str
    """The operator that computes it, by its name in this package; empty if the report has none."""
    choices: Mapping[str, TaskChoice]
    """By the slug of the device."""
    results: Mapping[str, Result]
    """Those of ``choices`` that there are."""

    @property
    def sizes(self) -> str:
        if self.task.workload is None:
            return ""
        texts = [
            name if value is True else f"{name} {value}"
            for name, value in self.task.workload.axes.items()
            if name != "function" and value is not False
        ]
        return ", ".join(filter(None, [self.task.workload.group, *texts]))


@dataclass(frozen=True)
class PhaseReport:
    phase: Phase
    calls: Sequence[ModelCall]
    """Calls of kernels, those that take the baselines most time first."""
    blocks: Sequence[ModelCall]
    """Calls of modules of higher levels that an operator computes; their time contains that of kernels."""
    predictions: Mapping[str, Prediction]
    """What the fastest implementations give together, by the slug of the device."""

    @property
    def every(self) -> list[ModelCall]:
        return [*self.calls, *self.blocks]

    def measured(self, device: str) -> int:
        return sum(device in call.results for call in self.calls)


@dataclass(frozen=True)
class ModelReport:
    tasks: ModelTasks
    config: Mapping[str, Any]
    """Its configuration, with Hugging Face's names."""
    operators: Collection[str]
    """Those of the report, by their names in this package."""
    measured: Sequence[Measurements]
    """Of each device."""

    @property
    def key(self) -> str:
        return self.tasks.model

    @property
    def experts(self) -> int:
        return int(self.config.get("num_experts") or self.config.get("num_local_experts") or 0)

    @cached_property
    def whole(self) -> list[PhaseReport]:
        return list(map(self._phase, self.tasks.phases))

    @cached_property
    def splits(self) -> dict[int, list[PhaseReport]]:
        """The passes on one GPU, then those of one of several tensor-parallel ranks, as far as the model can be split."""
        sizes = [ranks for ranks in RANKS[1:] if (derived_folder(ranks) / f"{self.key}.json").is_file()]
        parts = {ranks: read_model_tasks(self.key, ranks).phases for ranks in sizes}
        return {1: self.whole} | {ranks: list(map(self._phase, phases)) for ranks, phases in parts.items()}

    @property
    def results(self) -> list[Result]:
        phases = (phase for split in self.splits.values() for phase in split)
        return [result for phase in phases for call in phase.every for result in call.results.values()]

    @cached_property
    def devices(self) -> list[Device]:
        """The devices on which any of its calls was measured: GPUs first, then by number of kernels and slug."""
        devices = {result.view.device.slug: result.view.device for result in self.results}
        return sorted(
            devices.values(),
            key=lambda device: (device.kind == "cpu", -self.measured_on(device.slug), device.slug),
        )

    @property
    def kernels(self) -> int:
        return sum(len(phase.calls) for phase in self.whole)

    def measured_on(self, device: str) -> int:
        return sum(phase.measured(device) for phase in self.whole)

    @property
    def not_measured(self) -> list[str]:
        calls = (call for phase in self.whole for call in phase.every if not call.results)
        return list(dict.fromkeys(call.operator for call in calls if call.operator))

    @property
    def classes(self) -> set[str]:
        return {task.module for phase in self.tasks.phases for task in phase.tasks}

    def _phase(self, phase: Phase) -> PhaseReport:
        chosen = {on_device.device: choose_for_phase(phase, on_device) for on_device in self.measured}
        calls = self._calls(phase.kernels, {slug: it.tasks for slug, it in chosen.items()})
        blocks = self._calls(phase.blocks, {slug: it.blocks for slug, it in chosen.items()})
        return PhaseReport(
            phase,
            sorted(
                calls, key=lambda call: -max((it.baselines_ms for it in call.choices.values()), default=0)
            ),
            [call for call in blocks if call.operator],
            {slug: it.prediction for slug, it in chosen.items() if it.prediction},
        )

    def _calls(
        self, tasks: Iterable[ModelTask], choices: Mapping[str, Sequence[TaskChoice]]
    ) -> Iterator[ModelCall]:
        for number, task in enumerate(tasks):
            results = {
                on_device.device: result
                for on_device in self.measured
                if task.workload and (result := on_device.fastest(task.workload))
            }
            operator = task.operator if task.operator in self.operators else ""
            of_task = {slug: of_tasks[number] for slug, of_tasks in choices.items()}
            yield ModelCall(task, operator, of_task, results)


@dataclass(frozen=True)
class Models:
    """The models whose kernels operators of a report measure; none without such an operator."""

    operators: Mapping[str, Summary | None]
    """Summaries, by the name of the operator that comes with this package; None of one without results."""

    @cached_property
    def keys(self) -> list[str]:
        return sorted(model_files(DERIVED)) if self.operators else []

    @cached_property
    def reports(self) -> Mapping[str, ModelReport]:
        """The models by their names; read only if a page that shows them is rendered."""
        summaries = {name: summary for name, summary in self.operators.items() if summary}
        slugs = dict.fromkeys(view.device.slug for summary in summaries.values() for view in summary.devices)
        measured = [Measurements(summaries, slug) for slug in slugs]
        return {
            key: ModelReport(
                tasks=read_model_tasks(key),
                config=json.loads(find_model(CONFIGS, key).read_bytes()),
                operators=self.operators.keys(),
                measured=measured,
            )
            for key in self.keys
        }

    def used_by(self, operator: str) -> Iterator[tuple[ModelReport, list[tuple[str, ModelCall]]]]:
        """Yield the models that call what an operator computes, each with the phases and calls on one GPU."""
        for model in self.reports.values() if operator in self.operators else ():
            calls = [
                (phase.phase.name, call)
                for phase in model.whole
                for call in phase.every
                if call.operator == operator
            ]
            if calls:
                yield model, calls


class Share(NamedTuple):
    """What a changed time of a kernel is in a forward pass of a model."""

    model: str
    phase: str
    ms: float
    share: float
    """Of the time of all kernels of the pass, with the fastest implementations."""

    def __str__(self) -> str:
        return f"{deviation(self.share)} of {self.model} {self.phase}"


def model_shares(
    summaries: Mapping[str, Summary], differences: Mapping[RowName, float]
) -> dict[RowName, list[Share]]:
    """Return what differences of rows, in ms, are in the passes of models that call their workloads.

    Those of the model whose shape a row was measured for are first, then the largest share.
    """
    shares: dict[RowName, list[Share]] = {row: [] for row in differences}
    devices = {row.device: Measurements(summaries, row.device) for row in differences}
    phases = [(key, phase) for key in model_keys(DERIVED) for phase in read_model_tasks(key).phases]
    for (key, phase), (device, measured) in product(phases, devices.items()):
        calls: Counter[RowName] = Counter()
        for task in phase.tasks:
            wanted = task.workload if task.level == 1 else None
            equal = {it.workload.name for it in measured.all_equal(wanted)} if wanted else ()
            rows = [row for row in differences if (row.operator, row.device) == (task.operator, device)]
            calls.update({row: task.calls for row in rows if row.workload in equal})
        chosen = choose_for_phase(phase, measured) if calls else None
        if chosen and (whole := chosen.prediction):
            for row, count in calls.items():
                ms = count * differences[row]
                shares[row].append(Share(key, phase.name, ms, ms / whole.ms))
    for row, of_row in shares.items():
        of_row.sort(key=lambda share: (not row.workload.startswith(share.model), -abs(share.share)))
    return shares


def calls_csv(model: ModelReport) -> bytes:
    """Return the calls of a model as CSV: a line for each device, or one without results."""

    def lines(ranks: int, phase: PhaseReport, call: ModelCall) -> Iterator[list[Value]]:
        task = call.task
        about: list[Value] = [ranks, phase.phase.name, task.module, "; ".join(task.paths)]
        about += ["; ".join(task.inputs), task.calls, call.operator]
        for device, (_, _, row, _, point) in call.results.items():
            yield [
                *(*about, device, point.workload, row.implementation, point.p50_ms),
                *(point.speedup, point.speedup_low, point.speedup_high, point.verdict.value),
                *(task.calls * (point.p50_ms or 0.0), call.choices[device].share),
            ]
        if not call.results:
            yield [*about, *[None] * (len(_CSV_COLUMNS) - len(about))]

    calls = (
        (ranks, phase, call)
        for ranks, phases in model.splits.items()
        for phase in phases
        for call in phase.calls
    )
    return csv_text(_CSV_COLUMNS, (line for call in calls for line in lines(*call))).encode()


_LEVELS = Path(__file__).parents[1] / "models" / "baseline"


class Module(msgspec.Struct, frozen=True, order=True):
    """A class of ``models/baseline/L<level>.py``."""

    level: int
    class_name: str


@cache
def imports_of_models() -> Mapping[Module, Sequence[Module]]:
    """Return the classes of all levels, each with those that its code names, higher levels first.

    The code is read, not run: the command has no torch.
    """
    trees = {level: ast.parse((_LEVELS / f"L{level}.py").read_bytes()) for level in (1, 2, 3, 4)}
    classes = {
        node.name: (Module(level, node.name), node)
        for level, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return {
        module: sorted(
            {classes[it.id][0] for it in ast.walk(node) if isinstance(it, ast.Name) and it.id in classes}
            - {module},
            reverse=True,
        )
        for module, node in sorted(classes.values(), key=lambda item: item[0])
    }


def model_imports(model: ModelReport) -> dict[Module, Sequence[Module]]:
    """Return what the class of a model uses, directly or through others, each module with its own; nothing of transformers'."""
    imports = imports_of_models()
    top = next((task.module for task in model.tasks.phases[0].tasks if "" in task.paths), "")
    left = [module for module in imports if module.class_name == top]
    used: dict[Module, Sequence[Module]] = {}
    while left:
        module = left.pop()
        if module not in used:
            used[module] = imports[module]
            left += imports[module]
    return dict(sorted(used.items(), key=lambda item: (-item[0].level, item[0].class_name)))


def imports_json(model: ModelReport) -> bytes:
    """Return the modules of a model, whether some phase calls them, and the modules that they use."""
    called = model.classes
    modules = [
        {
            "level": module.level,
            "class_name": module.class_name,
            "called": module.class_name in called,
            "imports": [it.class_name for it in uses],
        }
        for module, uses in model_imports(model).items()
    ]
    return (
        msgspec.json.format(msgspec.json.encode({"model": model.key, "modules": modules}), indent=1) + b"\n"
    )
