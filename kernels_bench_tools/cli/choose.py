"""``kbt choose``: the fastest implementation for a shape, or for each kernel of a model."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import (
    last_build,
    note_problem,
    note_unused,
    notebook_records,
    print_json,
    terminal_width,
)
from kernels_bench_tools.cli.tables import fold_name, new_table, table_console
from kernels_bench_tools.errors import OperatorError, ProjectError
from kernels_bench_tools.notebooks.document import Notebook, survey_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.records.build import IMPLEMENTATIONS, BuildRun
from kernels_bench_tools.records.codec import read_committed
from kernels_bench_tools.records.committed import EFFECTS, effect_part, record_files
from kernels_bench_tools.records.device import Device, current_device
from kernels_bench_tools.records.effect import MODEL_LEVEL, EffectRow
from kernels_bench_tools.records.model import Phase, read_model_tasks
from kernels_bench_tools.records.model_workloads import operator_of_module
from kernels_bench_tools.records.record import Record, Status, device_of
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Prediction, Summary, Verdict
from kernels_bench_tools.results.choose import (
    NO_OPERATOR,
    Choice,
    PhaseChoice,
    TaskChoice,
    choose_for_phase,
    nearest,
    read_axes,
    unmeasured,
)
from kernels_bench_tools.results.choose import choose as choose_at
from kernels_bench_tools.results.effect_files import read_effect
from kernels_bench_tools.results.metrics import speedup_with_interval
from kernels_bench_tools.results.rows import Source
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.text import did_you_mean, milliseconds, plural, title_from_name, visible

_VERDICT_WIDTH = len("separately")
"""Columns of verdicts, which are wrapped at spaces, so that names have room."""
_FIGURES_WIDTH = 47
"""Columns of time, speed-up and verdict, and spaces between them."""
_SHARE_WIDTH = 8


def choose(
    operator: Annotated[
        str, typer.Argument(metavar="OPERATOR", help="Such as rms_norm.", show_default=False)
    ] = "",
    axes: Annotated[
        str,
        typer.Option(
            "--axes",
            metavar="AXIS=VALUE,...",
            help="The shape, such as `hidden_dim=5120,rows=8192`; axes that are not named may have any value. `rows` is "
            "batch times seq_len. `dtype` counts as an axis.",
        ),
    ] = "",
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="For each kernel of a model such as llama-3.1-8b.")
    ] = "",
    phase: Annotated[
        str,
        typer.Option(
            "--phase",
            metavar="PHASES",
            help="With --model: only these forward passes, such as `prefill-2048,decode-1`. [default: all]",
            show_default=False,
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="SLUG",
            help="Device of the records, such as nvidia-h200. [default: the only GPU with records, else this machine's "
            "device]",
            show_default=False,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Print the fastest correct implementation for a shape, or for each kernel of a model.

    Nothing is measured: committed records are used, and newer results of the last build here. For a shape that was not
    measured, the nearest measured ones are shown, with the factors by which they differ. With --model, kernels are
    weighted by their calls in a forward pass, and the speed-up of all choices together is predicted.

    Examples: `kbt choose rms_norm --axes hidden_dim=5120`; `kbt choose --model llama-3.1-8b --phase decode-1`.
    """
    if bool(operator) == bool(model):
        what = "cannot be used together" if model else "are both missing"
        expected = "`kbt choose rms_norm --axes hidden_dim=5120` or `kbt choose --model llama-3.1-8b`"
        raise ProjectError("OPERATOR and --model", what, expected)
    note_unused({"--axes": bool(model and axes)}, "with --model")
    note_unused({"--phase": bool(phase and not model)}, "without --model")
    project = find_project(Path.cwd())
    if model:
        _choose_for_model(project, model, phase, device, json)
    else:
        _choose_for_shape(project, operator, axes, device, json)


def _choose_for_shape(project: Project, operator: str, axes: str, device: str, json: bool) -> None:
    known = operators(project)
    if operator not in known:
        hint = did_you_mean(operator, known, "`kbt list` shows them")
        raise OperatorError(operator, "is not an operator of this project", ", ".join(known), hint)
    summary = _summaries(project, [operator])[operator]
    chosen_device = _device(operator, [summary], device)
    wanted = read_axes(operator, axes, summary)
    choices = [one for found in nearest(summary, chosen_device.slug, wanted) if (one := choose_at(found))]
    if not choices:
        what = f"no workload of {operator} with {axes or 'any shape'} has a ranked result on {chosen_device.slug}"
        raise OperatorError(f"--axes {axes}", what, "", f"`kbt run {operator}` measures it")
    if json:
        print_json({"device": chosen_device, "axes": wanted, "choices": choices})
        return
    console = table_console(terminal_width())
    shape = ", ".join(f"{name} {value}" for name, value in wanted.items()) or "every measured shape"
    console.print(visible(f"{operator}, {shape}, on {chosen_device.name}"), style="bold")
    for near in dict.fromkeys(choice.near for choice in choices if wanted):
        print(f"nearest measured: {near}" if near else "measured with this shape")
    console.print(_shape_table(choices, console.width - _FIGURES_WIDTH))
    _print_notes((f"{one.workload}: {note}" for one in choices for note in _notes(one)), console.width)
    count = Counter(choice.implementation for choice in choices)
    total = plural(len(choices), "workload")
    fastest = (
        f"fastest for {number} of {total}: {operator}/{IMPLEMENTATIONS}/{name}.md"
        for name, number in count.most_common()
    )
    _print_notes(fastest, console.width)


def _choose_for_model(project: Project, model: str, phase: str, device: str, json: bool) -> None:
    tasks = read_model_tasks(model)
    names = [name.strip() for name in phase.split(",") if name.strip()]
    phases = [tasks.phase(name) for name in names] or tasks.phases
    called = dict.fromkeys(operator_of_module(task.module) for one in phases for task in one.tasks)
    summaries = _summaries(project, [one for one in called if one in operators(project)])
    chosen_device = _device(f"the kernels of {model}", summaries.values(), device)
    found = [choose_for_phase(one, summaries, chosen_device.slug) for one in phases]
    for choice in found:
        choice.measured_effect = _measured_effect(project, model, chosen_device, choice)
    if json:
        print_json({"model": model, "device": chosen_device, "phases": found})
        return
    for one, choice in zip(phases, found, strict=True):
        _print_phase(model, one, choice, chosen_device)
    if missing := unmeasured(found, summaries, chosen_device.slug):
        print("measure what is near or missing, on that device:")
        print(_command(["kbt build", *missing, f"--workloads {model}"]))


def _measured_effect(project: Project, model: str, device: Device, found: PhaseChoice) -> list[EffectRow]:
    """Return the rows of the whole model that ``kbt effect`` has recorded with exactly these implementations and their code."""
    wanted = {effect_part(name) for name in found.effect}
    for path in (project.root / EFFECTS / device.slug / model).glob("*.jsonl"):
        if set(path.stem.split("+")) == wanted and (effect := read_effect(path, found.phase)):
            notebooks = {
                f"{operator}/{path.stem}": path
                for operator, paths in operators(project).items()
                for path in paths
            }
            code = {
                name: [cell.code for cell in survey_notebook(project, notebooks[name]).cells]
                for name in found.effect
                if name in notebooks
            }
            if not effect.has_other_code(code):
                return [row for row in effect.rows if row.effect.level == MODEL_LEVEL]
    return []


def _summaries(project: Project, names: Iterable[str]) -> dict[str, Summary]:
    """Return the summary of each operator's forward passes: committed records, and newer ones of the last build."""
    known, build, found = operators(project), last_build(project), {}
    for operator in names:
        notebooks = [survey_notebook(project, path) for path in known[operator]]
        sources = [Source(records=_records(project, one, build), front=one.front) for one in notebooks]
        found[operator] = summarize(operator, title_from_name(operator), sources)
    return found


def _records(project: Project, notebook: Notebook, build: BuildRun | None) -> list[Record]:
    """Return the records of an implementation; of each workload on a device, those of the source with the newest."""
    committed = record_files(notebook.path.parents[1], notebook.implementation)
    sources = [read_committed(path, notebook.operator, on_problem=note_problem) for path in committed]
    if build is not None:
        sources.append(notebook_records(project, build, notebook.name))
    found: dict[tuple[str, str], dict[int, list[Record]]] = {}
    for number, records in enumerate(sources):
        for record in records:
            if not record.wl.get("mode"):
                key = (device_of(record).slug, record.workload)
                found.setdefault(key, {}).setdefault(number, []).append(record)
    newest = [
        max(sides.values(), key=lambda side: max(record.ts for record in side)) for sides in found.values()
    ]
    return [record for records in newest for record in records]


def _device(wanted: str, summaries: Iterable[Summary], slug: str) -> Device:
    """Return the device of this slug; by default the only GPU with records, else this machine's device."""
    known = {
        view.device.slug: view.device
        for summary in summaries
        for view in summary.devices
        if any(point.status is Status.OK for row in view.rows for point in row.points)
    }
    if not known:
        raise ProjectError("choose", f"no records of {wanted}", "", "`kbt build` measures on this machine")
    gpus = [one for one in known if known[one].kind == "cuda"]
    if not slug:
        slug = gpus[0] if len(gpus) == 1 else current_device().slug
    if slug not in known:
        hint = did_you_mean(slug, known, f"Devices with records: {', '.join(known)}")
        what = f"no records of {wanted}"
        raise ProjectError(f"--device {slug}", what, "The slug of a device", hint)
    return known[slug]


def _shape_table(choices: Sequence[Choice], width: int) -> Table:
    table = _new_table("workload, fastest")
    several = len({choice.dtype for choice in choices}) > 1
    for choice in choices:
        dtype = f" {choice.dtype}" if several else ""
        name = f"{fold_name(choice.workload, width)}{dtype}"
        table.add_row(f"{name}\n  {fold_name(choice.implementation, width - 2)}", *_figures(choice))
    return table


def _new_table(first: str, *more: str) -> Table:
    table = new_table()
    table.add_column(first, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("speed-up [95 %]", justify="right", no_wrap=True)
    table.add_column("verdict", max_width=_VERDICT_WIDTH)
    for title in more:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _figures(choice: Choice) -> list[str]:
    few = choice.verdict is Verdict.FEW_PROCESSES and choice.processes < FEWEST_PROCESSES
    processes = f"{plural(choice.processes, 'process', 'es')}: " if few else ""
    speedup = speedup_with_interval(choice.speedup, choice.speedup_low, choice.speedup_high)
    return [milliseconds(choice.p50_ms), speedup, f"{processes}{choice.verdict.value}"]


def _print_phase(model: str, phase: Phase, found: PhaseChoice, device: Device) -> None:
    console = table_console(terminal_width())
    console.print(visible(f"{phase.name} of {model} on {device.name}"), style="bold")
    table = _new_table("calls, kernel, fastest", "share")
    width = console.width - _FIGURES_WIDTH - _SHARE_WIDTH
    notes = _add_tasks(table, found.tasks, width)
    if table.row_count:
        console.print(table)
    _print_notes([*notes, *_predictions(found)], console.width)
    blocks = _new_table("calls, block, layer or model, fastest")
    notes = _add_tasks(blocks, found.blocks, width)
    if blocks.row_count:
        console.print(blocks)
        _print_notes(notes, console.width)
    if found.measured_effect:
        layers = (
            f" with {plural(count, 'layer')}" if (count := found.measured_effect[0].effect.layers) else ""
        )
        print(f"effect on the whole model{layers}, of one implementation for each operator:")
        for row in found.measured_effect:
            speedup = speedup_with_interval(row.speedup, row.low, row.high)
            predicted = speedup_with_interval(row.predicted, None, None)
            print(f"  {row.effect.module}: {speedup}, predicted {predicted}: {row.verdict.value}")
    elif found.effect:
        together = ["--together"] if len(found.effect) > 1 else []
        print("effect on the whole model: not measured in these records; to measure it:")
        print(_command(["kbt effect", *found.effect, *together, f"--model {model}", f"--phase {phase.name}"]))
    print()


def _add_tasks(table: Table, tasks: Sequence[TaskChoice], width: int) -> list[str]:
    """Add a row for each task with a choice; return the notes on them, and which are left out."""
    notes = []
    for task in tasks:
        if (choice := task.choice) is None:
            continue
        near = " (near)" if choice.near else ""
        name = f"{task.calls} {_label(task)}\n  {fold_name(choice.implementation, width - 2)}{near}"
        share = [] if task.share is None else [f"{100 * task.share:.1f} %"]
        table.add_row(name, *_figures(choice), *share)
        if choice.near:
            far = "" if task.ms is not None else ", too far for a share and an estimate"
            notes.append(f"{_label(task)}: nearest measured: {choice.near} ({choice.workload}){far}")
        notes += [f"{_label(task)}: {note}" for note in _notes(choice)]
    for reason, names in _left_out(tasks).items():
        notes.append(f"left out, {reason}: {', '.join(names)}")
    return notes


def _label(task: TaskChoice) -> str:
    """Return the class of a module with the shapes that tell its calls apart."""
    tensors = [one.partition(" ")[::2] for one in task.inputs]
    # An embedding and a model get numbers of tokens only.
    others = (kind for name, kind in tensors if name != "weight" and not kind.startswith("int"))
    first = next(others, tensors[0][1])
    shape = first[first.index("[") :]
    weight = next((" x " + kind[kind.index("[") :] for name, kind in tensors if name == "weight"), "")
    residual = " + residual" if any(name == "residual" for name, _ in tensors) else ""
    return f"{task.module}{residual} {shape}{weight}"


def _left_out(tasks: Iterable[TaskChoice]) -> Mapping[str, list[str]]:
    """Return the kernels without a choice, with their calls, by the reason."""
    calls: dict[str, Counter[str]] = {}
    for task in tasks:
        if task.choice is None:
            reason = "no operator computes it" if task.reason == NO_OPERATOR else task.reason
            calls.setdefault(reason, Counter())[task.module] += task.calls
    return {
        reason: [f"{module} ({plural(count, 'call')})" for module, count in found.items()]
        for reason, found in calls.items()
    }


def _predictions(found: PhaseChoice) -> Iterator[str]:
    """Yield what all choices give together, for kernels that were measured as they are called, and with near ones."""

    def counted(prediction: Prediction) -> str:
        calls = sum(task.calls for task in found.tasks)
        kernels = f"{prediction.tasks} of {plural(len(found.tasks), 'kernel')}"
        return f"{kernels}, {prediction.calls} of {plural(calls, 'call')}"

    if one := found.measured:
        speedup = speedup_with_interval(one.speedup, one.speedup_low, one.speedup_high)
        times = f"{milliseconds(one.baseline_ms)} to {milliseconds(one.ms)} ms"
        yield f"predicted for these, without near ones ({counted(one)}): {speedup}, {times}"
    else:
        yield "predicted: nothing, as no kernel was measured with its own shape"
    if one := found.estimated:
        speedup = speedup_with_interval(one.speedup, None, None)
        yield f"estimated with near ones ({counted(one)}): {speedup}, with times in proportion to sizes"


def _notes(choice: Choice) -> Iterator[str]:
    if choice.ties:
        yield f"may be as fast: {', '.join(choice.ties)}"
    if choice.faster:
        yield "not chosen: " + ", ".join(f"{name} ({why})" for name, why in choice.faster.items())


def _print_notes(notes: Iterable[str], width: int) -> None:
    for note in notes:
        print(visible(_folded(note, width, "  ")))


def _command(parts: Sequence[str]) -> str:
    """Return a command of several lines, which a shell takes as one; no part is split."""
    lines = _folded("  " + " ".join(part.replace(" ", "\0") for part in parts), 78, "    ").replace("\0", " ")
    return visible(lines.replace("\n", " \\\n"))


def _folded(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
