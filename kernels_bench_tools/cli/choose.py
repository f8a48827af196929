"""``kbt choose``: the fastest implementation for a shape, or for each kernel of a model."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import (
    last_build,
    note_problem,
    note_unused,
    notebook_records,
    print_heading,
    print_json,
    terminal_width,
)
from kernels_bench_tools.errors import OperatorError, ProjectError
from kernels_bench_tools.notebooks.document import Notebook, survey_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.records.build import IMPLEMENTATIONS, BuildRun
from kernels_bench_tools.records.codec import read_committed
from kernels_bench_tools.records.committed import EFFECTS, effect_part, record_file, record_files
from kernels_bench_tools.records.device import Device, current_device
from kernels_bench_tools.records.model import MODEL_LEVEL, Phase, read_model_tasks
from kernels_bench_tools.records.model_workloads import called_workload, operator_of_module
from kernels_bench_tools.records.record import Record, Status, device_of
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Summary, Verdict
from kernels_bench_tools.results.choice_export import (
    EffectLine,
    kernel_config,
    line_of,
)
from kernels_bench_tools.results.choose import (
    Choice,
    Measured,
    Measurements,
    PhaseChoice,
    Prediction,
    TaskChoice,
    choose_for_phase,
    nearest,
    read_axes,
    unmeasured,
)
from kernels_bench_tools.results.choose import choose as choose_at
from kernels_bench_tools.results.effects import EffectRow, read_effect
from kernels_bench_tools.results.metrics import speedup_with_interval
from kernels_bench_tools.results.sources import Source
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.text import (
    did_you_mean,
    grouped,
    milliseconds,
    plural,
    table,
    title_from_name,
    visible,
)

_OF_KERNEL_CONFIGS = {f"transformers_models/{name}" for name in ("use_kernels", "kernel_config")}


class Export(Enum):
    ENGINE = "engine"
    TRANSFORMERS = "transformers"


def choose(
    operator: Annotated[str, typer.Argument(show_default=False)] = "",
    axes: str = "",
    model: str = "",
    phase: str = "",
    device: str = "",
    export: Annotated[Export | None, typer.Option("--export")] = None,
    json: Json = False,
) -> None:
    """Print the fastest correct implementation for a shape, or for each kernel of a model.

    Nothing is measured: committed records are used, and newer results of the last build here. For a shape that was not
    measured, the nearest measured ones are shown, with the factors by which they differ. With --model, kernels are
    weighted by their calls in a forward pass, and the speed-up of all choices together is predicted.

    Examples: `kbt choose rms_norm --axes hidden_dim=5120`; `kbt choose --model llama-3.1-8b --phase decode-1`.

    Args:
        operator (OPERATOR): Such as rms_norm.
        axes (AXIS=VALUE,...): The shape, such as `hidden_dim=5120,rows=8192`; axes that are not named may have any
            value. `rows` is batch times seq_len. `dtype` counts as an axis.
        model (NAME): For each kernel of a model such as llama-3.1-8b.
        phase (PHASES): With --model: only these forward passes, such as `prefill-2048,decode-1`. [default: all]
        device (SLUG): Device of the records, such as nvidia-h200. [default: the only GPU with records, else this
            machine's device]
        export (FORM): `engine` prints JSON: the fastest for each shape, what not to use, and the files of records behind
            each line. `transformers` prints a `KernelConfig` for --model, of the layers whose kernel is slower for none of
            its shapes, with what was measured in the whole model. Only committed records have files.
    """
    if bool(operator) == bool(model):
        what = "cannot be used together" if model else "are both missing"
        expected = "`kbt choose rms_norm --axes hidden_dim=5120` or `kbt choose --model llama-3.1-8b`"
        raise ProjectError("OPERATOR and --model", what, expected)
    note_unused({"--axes": bool(model and axes)}, "with --model")
    note_unused({"--phase": bool(phase and not model)}, "without --model")
    project = find_project(Path.cwd())
    if export is Export.TRANSFORMERS and not model:
        raise ProjectError("--export transformers", "needs a model", "--model, such as llama-3.1-8b")
    if export:
        note_unused({"--json": json}, "with --export")
        _export(project, operator, axes, model, phase, device, export)
    elif model:
        _choose_for_model(project, model, phase, device, json)
    else:
        _choose_for_shape(project, operator, axes, device, json)


def _export(
    project: Project, operator: str, axes: str, model: str, phase: str, device: str, form: Export
) -> None:
    if model:
        phases = _phases(model, phase)
        summaries = _summaries_of(project, phases)
        slug = _device(f"the kernels of {model}", summaries.values(), device).slug
        pairs = list(_workloads(phases, Measurements(summaries, slug)))
    else:
        summary = _summary_of(project, operator)
        slug = _device(operator, [summary], device).slug
        pairs = [("", measured) for measured in nearest(summary, slug, read_axes(operator, axes, summary))]
    effects = list(_effects(project, model, slug, {name.strip() for name in phase.split(",")} - {""}))
    if form is Export.TRANSFORMERS:
        title = f"Written by `kbt choose --model {model} --export transformers`, from records of {slug}."
        found = grouped((measured.operator, (name, measured)) for name, measured in pairs)
        own = [one for one in effects if set(one.implementations) <= _OF_KERNEL_CONFIGS]
        print(kernel_config(title, found, own))
        return
    by_workload = grouped(
        ((one.operator, one.view.key, one.workload.name), (name, one)) for name, one in pairs
    )
    lines = []
    for each in by_workload.values():
        if line := line_of(each[0][1], [name for name in dict.fromkeys(name for name, _ in each) if name]):
            folder = project.root / line.operator
            files = {name: record_file(folder, slug, name) for name in line.named}
            line.records = {name: project.relative(path) for name, path in files.items() if path.exists()}
            lines.append(line)
    print_json(
        {"device": slug, "model": model, "lines": lines, "effects": [one.as_data() for one in effects]}
    )


def _workloads(phases: Iterable[Phase], measurements: Measurements) -> Iterator[tuple[str, Measured]]:
    """Yield the measured workload of each kernel of a model, with its phase; none for those not measured."""
    for each in phases:
        for task in each.tasks:
            wanted = called_workload(each, task)
            operator = operator_of_module(task.module)
            if wanted and (measured := measurements.equal(operator, wanted)):
                yield each.name, measured


def _effects(project: Project, model: str, slug: str, phases: set[str]) -> Iterator[EffectLine]:
    """Yield what was recorded of implementations in the whole model, here and as transformers runs it."""
    for name in (model, f"{model}-transformers") if model else ():
        for path in sorted((project.root / EFFECTS / slug / name).glob("*.jsonl")):
            effect = read_effect(path)
            for row in effect.rows if effect else ():
                if row.effect.level == MODEL_LEVEL and (not phases or row.effect.phase in phases):
                    yield EffectLine(effect.implementations if effect else [], row, project.relative(path))


def _choose_for_shape(project: Project, operator: str, axes: str, device: str, json: bool) -> None:
    summary = _summary_of(project, operator)
    chosen_device = _device(operator, [summary], device)
    wanted = read_axes(operator, axes, summary)
    nearby = nearest(summary, chosen_device.slug, wanted)
    choices = [choice for measured in nearby if (choice := choose_at(measured))]
    if not choices:
        what = f"no workload of {operator} with {axes or 'any shape'} has a ranked result on {chosen_device.slug}"
        raise OperatorError(f"--axes {axes}", what, "", f"`kbt run {operator}` measures it")
    if json:
        print_json({"device": chosen_device, "axes": wanted, "choices": choices})
        return
    shape = ", ".join(f"{name} {value}" for name, value in wanted.items()) or "every measured shape"
    print_heading(f"{operator}, {shape}, on {chosen_device.name}")
    for near in dict.fromkeys(choice.near for choice in choices if wanted):
        print(f"nearest measured: {near}" if near else "measured with this shape")
    several = len({choice.dtype for choice in choices}) > 1
    names = [f"{choice.workload} {choice.dtype}" if several else choice.workload for choice in choices]
    _print_choices(
        "workload, fastest", [(name, choice, "") for name, choice in zip(names, choices, strict=True)]
    )
    _print_notes(f"{choice.workload}: {note}" for choice in choices for note in _notes(choice))
    total = plural(len(choices), "workload")
    _print_notes(
        f"fastest for {number} of {total}: {operator}/{IMPLEMENTATIONS}/{name}.md"
        for name, number in Counter(choice.implementation for choice in choices).most_common()
    )


def _choose_for_model(project: Project, model: str, phase: str, device: str, json: bool) -> None:
    phases = _phases(model, phase)
    summaries = _summaries_of(project, phases)
    chosen_device = _device(f"the kernels of {model}", summaries.values(), device)
    measurements = Measurements(summaries, chosen_device.slug)
    chosen = [choose_for_phase(each, measurements) for each in phases]
    for choices in chosen:
        choices.measured_effect = _measured_effect(project, model, chosen_device, choices)
    if json:
        print_json({"model": model, "device": chosen_device, "phases": chosen})
        return
    for choices in chosen:
        print_heading(f"{choices.phase} of {model} on {chosen_device.name}")
        _print_tasks("calls, kernel, fastest", choices.tasks)
        _print_notes(_predictions(choices))
        if any(task.choice for task in choices.blocks):
            _print_tasks("calls, block, layer or model, fastest", choices.blocks)
        _print_effect(model, choices)
    if missing := unmeasured(chosen, measurements):
        print("to measure what has no record of its own shape, on that device:")
        print(_command(["kbt build", *missing, f"--workloads {model}"]))


def _summary_of(project: Project, operator: str) -> Summary:
    known = operators(project)
    if operator not in known:
        hint = did_you_mean(operator, known, "`kbt list` shows them")
        raise OperatorError(operator, "is not an operator of this project", ", ".join(known), hint)
    return forward_summaries(project, [operator])[operator]


def _phases(model: str, names: str) -> Sequence[Phase]:
    tasks = read_model_tasks(model)
    return [tasks.phase(name.strip()) for name in names.split(",") if name.strip()] or tasks.phases


def _summaries_of(project: Project, phases: Iterable[Phase]) -> dict[str, Summary]:
    called = dict.fromkeys(operator_of_module(task.module) for each in phases for task in each.tasks)
    return forward_summaries(project, [name for name in called if name in operators(project)])


def _measured_effect(project: Project, model: str, device: Device, choices: PhaseChoice) -> list[EffectRow]:
    """Return the rows of the whole model that ``kbt effect`` has recorded with exactly these implementations and their code."""
    notebooks = {
        f"{operator}/{path.stem}": path for operator, paths in operators(project).items() for path in paths
    }
    for path in (project.root / EFFECTS / device.slug / model).glob("*.jsonl"):
        if {*path.stem.split("+")} != {*map(effect_part, choices.effect)}:
            continue
        code = {
            name: [cell.sources for cell in survey_notebook(project, notebooks[name]).cells]
            for name in choices.effect
            if name in notebooks
        }
        effect = read_effect(path, choices.phase)
        if effect and not effect.has_other_code(code):
            return [row for row in effect.rows if row.effect.level == MODEL_LEVEL]
    return []


def forward_summaries(project: Project, names: Iterable[str]) -> dict[str, Summary]:
    """Return the summary of each operator's forward passes: committed records, and newer ones of the last build."""
    known, build, summaries = operators(project), last_build(project), {}
    for operator in names:
        notebooks = [survey_notebook(project, path) for path in known[operator]]
        sources = [Source(records=_records(project, each, build), front=each.front) for each in notebooks]
        summaries[operator] = summarize(operator, title_from_name(operator), sources)
    return summaries


def _records(project: Project, notebook: Notebook, build: BuildRun | None) -> list[Record]:
    """Return the records of an implementation; of each workload on a device, those of the source with the newest."""
    committed = record_files(notebook.path.parents[1], notebook.implementation)
    sources = [read_committed(path, notebook.operator, on_problem=note_problem) for path in committed]
    if build is not None:
        sources.append(notebook_records(project, build, notebook.name))
    # By device and workload, and then by source.
    rows = grouped(
        ((device_of(record).slug, record.workload), (number, record))
        for number, records in enumerate(sources)
        for record in records
        if not record.wl.get("mode")
    )
    newest = [
        max(grouped(each).values(), key=lambda side: max(record.ts for record in side))
        for each in rows.values()
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
    gpus = [name for name in known if known[name].kind == "cuda"]
    if not slug:
        slug = gpus[0] if len(gpus) == 1 else current_device().slug
    if slug not in known:
        hint = did_you_mean(slug, known, f"Devices with records: {', '.join(known)}")
        what = f"no records of {wanted}"
        raise ProjectError(f"--device {slug}", what, "The slug of a device", hint)
    return known[slug]


def _print_choices(first: str, choices: Sequence[tuple[str, Choice, str]]) -> None:
    """Print two lines for each choice: what it is for and its figures, and the implementation.

    The last text is its share of the time; there is no such column where no choice has one.
    """
    lines = [[first, "ms", "speed-up [95 %]", "verdict", "share"]]
    for name, choice, share in choices:
        few = choice.verdict is Verdict.FEW_PROCESSES and choice.processes < FEWEST_PROCESSES
        processes = f"{plural(choice.processes, 'process', 'es')}: " if few else ""
        near = " (near)" if choice.near and first.startswith("calls") else ""
        speedup = speedup_with_interval(choice.speedup, choice.speedup_low, choice.speedup_high)
        verdict = f"{processes}{choice.verdict.label}"
        name = f"{name}\n  {choice.implementation}{near}"
        lines.append([name, milliseconds(choice.p50_ms), speedup, verdict, share])
    if not any(share for *_, share in choices):
        lines = [line[:-1] for line in lines]
    if choices:
        print(table(lines, right={1, 2, 4}, width=terminal_width()))


def _print_tasks(first: str, tasks: Sequence[TaskChoice]) -> None:
    """Print a line for each task with a choice, notes on them, and which tasks are left out."""
    rows, notes = [], []
    for task in tasks:
        if choice := task.choice:
            label = _label(task)
            share = "" if task.share is None else f"{100 * task.share:.1f} %"
            rows.append((f"{task.calls} {label}", choice, share))
            if choice.near:
                far = "" if task.ms is not None else ", too far for a share and an estimate"
                notes.append(f"{label}: nearest measured: {choice.near} ({choice.workload}){far}")
            notes += [f"{label}: {note}" for note in _notes(choice)]
    for reason, others in grouped((task.reason, task) for task in tasks if task.choice is None).items():
        calls = grouped((task.module, task.calls) for task in others)
        counted = ", ".join(f"{module} ({plural(sum(each), 'call')})" for module, each in calls.items())
        notes.append(f"left out, {reason}: {counted}")
    _print_choices(first, rows)
    _print_notes(notes)


def _label(task: TaskChoice) -> str:
    """Return the class of a module with the shapes that tell its calls apart."""
    tensors = [each.partition(" ")[::2] for each in task.inputs]
    # An embedding and a model get numbers of tokens only.
    others = (kind for name, kind in tensors if name != "weight" and not kind.startswith("int"))
    shapes = [next(others, tensors[0][1]), *(kind for name, kind in tensors if name == "weight")]
    residual = " + residual" if any(name == "residual" for name, _ in tensors) else ""
    sizes = " x ".join(shape[shape.index("[") :].replace(", ", ",") for shape in shapes[:2])
    return f"{task.module}{residual} {sizes}"


def _predictions(choices: PhaseChoice) -> Iterator[str]:
    """Yield what all choices give together, for kernels that were measured as they are called, and with near ones."""

    def counted(prediction: Prediction) -> str:
        calls = sum(task.calls for task in choices.tasks)
        kernels = f"{prediction.tasks} of {plural(len(choices.tasks), 'kernel')}"
        return f"{kernels}, {prediction.calls} of {plural(calls, 'call')}"

    if exact := choices.measured:
        speedup = speedup_with_interval(exact.speedup, exact.speedup_low, exact.speedup_high)
        times = f"{milliseconds(exact.baseline_ms)} to {milliseconds(exact.ms)} ms"
        yield f"predicted for measured shapes ({counted(exact)}): {speedup}, {times}"
    else:
        yield "predicted: nothing, as no kernel was measured with its own shape"
    if near := choices.estimated:
        speedup = speedup_with_interval(near.speedup, None, None)
        yield f"estimated with near shapes ({counted(near)}): {speedup}, times in proportion to sizes"


def _print_effect(model: str, choices: PhaseChoice) -> None:
    """Print the recorded effect of the choices on the whole model, or the command that measures it."""
    if rows := choices.measured_effect:
        layers = f" with {plural(count, 'layer')}" if (count := rows[0].effect.layers) else ""
        print(f"effect on the whole model{layers}, of one implementation for each operator:")
        for row in rows:
            speedup = speedup_with_interval(row.speedup, row.low, row.high)
            predicted = speedup_with_interval(row.predicted, None, None)
            print(f"  {row.effect.module}: {speedup} (predicted {predicted}), {row.verdict.label}")
    elif choices.effect:
        together = ["--together"] if len(choices.effect) > 1 else []
        print("effect on the whole model: not measured in these records; to measure it:")
        options = [*together, f"--model {model}", f"--phase {choices.phase}"]
        print(_command(["kbt effect", *choices.effect, *options]))
    print()


def _notes(choice: Choice) -> Iterator[str]:
    if choice.ties:
        yield f"may be as fast: {', '.join(choice.ties)}"
    if choice.faster:
        yield "not chosen: " + ", ".join(f"{name} ({why})" for name, why in choice.faster.items())


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(visible(_filled(note, terminal_width(), "  ")))


def _command(parts: Sequence[str]) -> str:
    """Return a command of several lines, which a shell takes as one; no part is split."""
    lines = _filled("  " + " ".join(part.replace(" ", "\0") for part in parts), 78, "    ").replace("\0", " ")
    return visible(lines.replace("\n", " \\\n"))


def _filled(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
