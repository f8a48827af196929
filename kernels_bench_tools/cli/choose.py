"""``kbt choose``: the fastest implementation for a shape, or for each kernel of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer
from msgspec import structs

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import (
    known_records,
    last_build,
    note_problem,
    note_unused,
    print_heading,
    print_json,
    print_table,
    print_wrapped,
)
from kernels_bench_tools.errors import OperatorError, ProjectError
from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.records.committed import EFFECTS, record_file
from kernels_bench_tools.records.device import Device, current_device
from kernels_bench_tools.records.model import MODEL_LEVEL, read_model_tasks
from kernels_bench_tools.records.notebook import IMPLEMENTATIONS
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.request import TRANSFORMERS
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Summary, Verdict
from kernels_bench_tools.results.choose import (
    Choice,
    Measurements,
    PhaseChoice,
    TaskChoice,
    choose_for_phase,
    kernel_config,
    nearest,
    read_axes,
    unmeasured,
)
from kernels_bench_tools.results.choose import choose as choose_at
from kernels_bench_tools.results.effects import EffectVerdict, read_effect
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.names import title_from_name
from kernels_bench_tools.text.numbers import milliseconds, times_with_interval
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import did_you_mean, plural

_COMMAND_WIDTH = 78
_OF_KERNEL_CONFIGS = {f"transformers_models/{name}" for name in ("use_kernels", "kernel_config")}


def choose(
    operator: Annotated[str, typer.Argument(show_default=False)] = "",
    axes: str = "",
    model: str = "",
    phase: str = "",
    device: str = "",
    export: Literal["engine", "transformers"] | None = None,
    json: Json = False,
) -> None:
    """Print the fastest correct implementation for a shape, or for each kernel of a model.

    Measures nothing; uses committed records and newer results of the last build. For a shape that was not measured, shows
    the nearest measured ones and the factors by which they differ. With --model, weights kernels by their number of calls
    in a forward pass and predicts the speed-up of all choices together.

    Examples: `kbt choose rms_norm --axes hidden_dim=5120`; `kbt choose --model llama-3.1-8b --phase decode-1`.

    Args:
        operator (OPERATOR): Such as rms_norm.
        axes (AXIS=VALUE,...): Shape, such as `hidden_dim=5120,rows=8192`. Axes that are not given may have any value. `rows`
            is batch times seq_len; `dtype` is an axis, too.
        model (NAME): Choose for each kernel of this model, such as llama-3.1-8b.
        phase (PHASES): With --model: only these forward passes, such as `prefill-2048,decode-1`. [default: all]
        device (SLUG): Device of the records, such as nvidia-h200. [default: the only GPU with records, else this
            machine's device]
        export (FORM): `engine` prints JSON: the fastest implementation per shape, those to avoid, and the files of committed
            records behind each line. `transformers` prints a `KernelConfig` for --model, with the layers whose kernel is
            slower at none of their shapes, and the effects measured in the whole model.
    """
    if bool(operator) == bool(model):
        what = "cannot be used together" if model else "are both missing"
        expected = "`kbt choose rms_norm --axes hidden_dim=5120` or `kbt choose --model llama-3.1-8b`"
        raise ProjectError("OPERATOR and --model", what, expected)
    note_unused({"--axes": bool(model and axes)}, "with --model")
    note_unused({"--phase": bool(phase and not model)}, "without --model")
    note_unused({"--json": json and export is not None}, "with --export")
    project = find_project()
    if export == "transformers" and not model:
        raise ProjectError("--export transformers", "needs a model", "--model, such as llama-3.1-8b")
    if model:
        _choose_for_model(project, model, phase, device, export, json)
    else:
        _choose_for_shape(project, operator, axes, device, export, json)


def _choose_for_shape(
    project: Project, operator: str, axes: str, device: str, export: str | None, json: bool
) -> None:
    known = operators(project)
    if operator not in known:
        hint = did_you_mean(operator, known, "`kbt list` shows them")
        raise OperatorError(operator, "is not an operator of this project", ", ".join(known), hint)
    summary = forward_summaries(project, [operator])[operator]
    on = _device(operator, [summary], device)
    wanted = read_axes(operator, axes, summary)
    choices = [choice for near in nearest(summary, on.slug, wanted) if (choice := choose_at(near))]
    if export:
        lines = [_line(project, on.slug, choice, []) for choice in choices]
        print_json({"device": on.slug, "model": "", "lines": lines, "effects": []})
        return
    if not choices:
        what = f"no workload of {operator} with {axes or 'any shape'} has a ranked result on {on.slug}"
        raise OperatorError(f"--axes {axes}", what, "", f"`kbt run {operator}` measures it")
    if json:
        print_json({"device": on, "axes": wanted, "choices": choices})
        return
    shape = ", ".join(f"{name} {value}" for name, value in wanted.items()) or "every measured shape"
    print_heading(f"{operator}, {shape}, on {on.name}")
    for near in dict.fromkeys(choice.near for choice in choices if wanted):
        print(f"nearest measured: {near}" if near else "measured with this shape")
    several = len({choice.axes["dtype"] for choice in choices}) > 1
    rows = [
        (f"{choice.workload} {choice.axes['dtype']}" if several else choice.workload, choice, "")
        for choice in choices
    ]
    _print_choices("workload, fastest", rows)
    for text in (f"{choice.workload}: {note}" for choice in choices for note in _notes(choice)):
        print_wrapped(text)
    total = plural(len(choices), "workload")
    for name, number in Counter(choice.implementation for choice in choices).most_common():
        print_wrapped(f"fastest for {number} of {total}: {operator}/{IMPLEMENTATIONS}/{name}.md")


def _choose_for_model(
    project: Project, model: str, phase: str, device: str, export: str | None, json: bool
) -> None:
    tasks, names = read_model_tasks(model), [name.strip() for name in phase.split(",") if name.strip()]
    phases = [tasks.phase(name) for name in names] or tasks.phases
    computed = dict.fromkeys(task.operator for each in phases for task in each.tasks)
    summaries = forward_summaries(project, [name for name in computed if name in operators(project)])
    on = _device(f"the kernels of {model}", summaries.values(), device)
    measurements = Measurements(summaries, on.slug)
    if export:
        called = list(measurements.called(phases))
        effects = list(_effects(project, model, on.slug, names))
        if export == "transformers":
            command = f"kbt choose --model {model} --export transformers"
            title = f"Written by `{command}`, from records of {on.slug}."
            configured = [effect for effect in effects if {*effect["implementations"]} <= _OF_KERNEL_CONFIGS]
            notes = ["Measured in the whole model:", *map(_effect_line, configured)] if configured else []
            print(kernel_config(title, called, notes))
            return
        by_workload = grouped(
            ((measured.operator, measured.view.key, measured.workload.name), (name, measured))
            for name, measured in called
        )
        lines = [
            _line(project, on.slug, choice, list(dict.fromkeys(name for name, _ in calls)))
            for calls in by_workload.values()
            if (choice := choose_at(calls[0][1]))
        ]
        print_json({"device": on.slug, "model": model, "lines": lines, "effects": effects})
        return
    chosen = [choose_for_phase(each, measurements) for each in phases]
    if json:
        print_json({"model": model, "device": on, "phases": chosen})
        return
    for choices in chosen:
        print_heading(f"{choices.phase} of {model} on {on.name}")
        _print_tasks("calls, kernel, fastest", choices.tasks)
        print_wrapped(_prediction(choices))
        if any(task.choice for task in choices.blocks):
            _print_tasks("calls, block, layer or model, fastest", choices.blocks)
        if choices.effect:
            print("to measure their effect on the whole model:")
            together = ["--together"] if len(choices.effect) > 1 else []
            framework = [f"--framework {TRANSFORMERS}"] if tasks.kernels else []
            options = [*together, *framework, f"--model {model}", f"--phase {choices.phase}"]
            _print_command(["kbt effect", *choices.effect, *options])
        print()
    if missing := unmeasured(chosen, measurements):
        print("to measure shapes without a record, on that device:")
        _print_command(["kbt build", *missing, f"--workloads {model}"])


def _line(project: Project, slug: str, choice: Choice, phases: list[str]) -> dict[str, Any]:
    """Return a choice as an engine gets it, with the committed files of the implementations that it names."""
    folder = project.root / choice.operator
    files = {
        name: record_file(folder, slug, name) for name in (choice.implementation, *choice.ties, *choice.avoid)
    }
    records = {name: project.relative(path) for name, path in files.items() if path.exists()}
    return {**msgspec.to_builtins(choice), "phases": phases, "records": records}


def _effects(project: Project, model: str, slug: str, phases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what was recorded of implementations in the whole model, here and as transformers runs it."""
    for name in (model, f"{model}-transformers"):
        for path in sorted((project.root / EFFECTS / slug / name).glob("*.jsonl")):
            effect = read_effect(project.root, path)
            for row in effect.rows if effect else ():
                if effect and row.effect.level == MODEL_LEVEL and (not phases or row.effect.phase in phases):
                    yield {
                        "implementations": effect.implementations,
                        "phase": row.effect.phase,
                        "how": row.effect.module,
                        **{field: getattr(row, field) for field in ("speedup", "low", "high", "verdict")},
                        "avoid": row.verdict is EffectVerdict.REGRESSED,
                        "records": project.relative(path),
                    }


def _effect_line(effect: dict[str, Any]) -> str:
    where = f"{', '.join(effect['implementations'])}, {effect['phase']}, {effect['how']}"
    gain = times_with_interval(Estimate.of(effect["speedup"], effect["low"], effect["high"]))
    return f"  {where}: {gain}, {effect['verdict'].label}{': do not use it so' if effect['avoid'] else ''}"


def forward_summaries(project: Project, names: Iterable[str]) -> dict[str, Summary]:
    """Return the summary of each operator's forward passes: committed records, and those of the last build."""
    known, build, summaries = operators(project), last_build(project), {}
    for operator in names:
        _, records = known_records(project, operator, known[operator], build)
        for problem in records.problems:
            note_problem(problem)
        forward = [
            structs.replace(
                source, records=[record for record in source.records if not record.wl.get("mode")]
            )
            for source in records.sources
        ]
        summaries[operator] = summarize(operator, title_from_name(operator), forward)
    return summaries


def _device(wanted: str, summaries: Iterable[Summary], slug: str) -> Device:
    """Return the device of this slug; by default the only GPU with records, else this machine's device."""
    known = {
        view.device.slug: view.device
        for summary in summaries
        for view in (*summary.devices, *summary.drawn)
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
        verdict = f"{processes}{choice.verdict.label}"
        name = f"{name}\n  {choice.implementation}"
        lines.append([name, milliseconds(choice.p50_ms), times_with_interval(choice.gain), verdict, share])
    if not any(share for *_, share in choices):
        lines = [line[:-1] for line in lines]
    if choices:
        print_table(lines, right={1, 2, 4})


def _print_tasks(first: str, tasks: Sequence[TaskChoice]) -> None:
    """Print a line for each task with a choice, notes on them, and which tasks are left out."""
    rows, notes = [], []
    for task in tasks:
        if choice := task.choice:
            label = _label(task)
            share = "" if task.share is None else f"{100 * task.share:.1f} %"
            rows.append((f"{task.calls} {label}", choice, share))
            if choice.near:
                notes.append(f"{label}: {choice.near} ({choice.workload})")
            notes += [f"{label}: {note}" for note in _notes(choice)]
    for reason, others in grouped((task.reason, task) for task in tasks if task.choice is None).items():
        calls = grouped((task.module, task.calls) for task in others)
        counted = ", ".join(f"{module} ({plural(sum(each), 'call')})" for module, each in calls.items())
        notes.append(f"left out, {reason}: {counted}")
    _print_choices(first, rows)
    for note in notes:
        print_wrapped(note)


def _label(task: TaskChoice) -> str:
    """Return the class of a module with the shapes that tell its calls apart."""
    tensors = [each.partition(" ")[::2] for each in task.inputs]
    # An embedding and a model get numbers of tokens only.
    others = (kind for name, kind in tensors if name != "weight" and not kind.startswith("int"))
    shapes = [next(others, tensors[0][1]), *(kind for name, kind in tensors if name == "weight")]
    residual = " + residual" if any(name == "residual" for name, _ in tensors) else ""
    sizes = " x ".join(shape[shape.index("[") :].replace(", ", ",") for shape in shapes[:2])
    return f"{task.module}{residual} {sizes}"


def _prediction(choices: PhaseChoice) -> str:
    if (total := choices.prediction) is None:
        return "no prediction: no kernel was measured at its shape"
    calls = plural(sum(task.calls for task in choices.tasks), "call")
    kernels = f"{total.tasks} of {plural(len(choices.tasks), 'kernel')}, {total.calls} of {calls}"
    times = f"{milliseconds(total.baseline_ms)} to {milliseconds(total.ms)} ms"
    return f"predicted for measured shapes ({kernels}): {times_with_interval(total.gain)}, {times}"


def _notes(choice: Choice) -> Iterator[str]:
    if choice.ties:
        yield f"may be as fast: {', '.join(choice.ties)}"
    if choice.faster:
        yield "not chosen: " + ", ".join(f"{name} ({why})" for name, why in choice.faster.items())


def _print_command(parts: Sequence[str]) -> None:
    """Print a command in several lines, which a shell takes as one; no part is split."""
    lines = ["  "]
    for part in parts:
        if len(lines[-1]) + len(part) > _COMMAND_WIDTH:
            lines.append("    ")
        lines[-1] += f"{part} "
    print(visible("\\\n".join(lines).rstrip()))
