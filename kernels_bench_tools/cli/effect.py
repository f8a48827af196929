"""``kbt effect``: what an implementation changes in a model, predicted and measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.output import (
    note,
    notebook_records,
    print_failures,
    print_heading,
    print_json,
    print_table,
    print_wrapped,
)
from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.cli.record import keep_records
from kernels_bench_tools.errors import ModelError, NotebookError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.models.config import config_digest, config_for
from kernels_bench_tools.notebooks.benchmark_calls import find_benchmark_calls
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.header import split_header
from kernels_bench_tools.notebooks.project import Project, find_project_of
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.records.committed import EFFECTS, effect_file
from kernels_bench_tools.records.model import (
    CONFIGS,
    MODEL_LEVEL,
    REPLACEABLE_OPERATORS,
    find_model,
    model_files,
    model_of_framework,
    phase_sizes,
)
from kernels_bench_tools.records.notebook import IMPLEMENTATIONS, is_implementation
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.records.record import Record
from kernels_bench_tools.records.request import TRANSFORMERS, EffectRequest, OtherCell, Request
from kernels_bench_tools.results.effects import Breakdown, EffectRow, breakdown_of, effect_rows
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.locks import project_lock
from kernels_bench_tools.run.options import DEFAULT_PROCESSES, BuildOptions
from kernels_bench_tools.text.foreign import parse_json
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.numbers import milliseconds, times, times_with_interval
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import abbreviated, plural

_PHASES = "prefill-2048,decode-1,decode-32"


@takes_build_options("env rerun cluster memory_limit")
def effect(
    implementations: Annotated[list[str], typer.Argument()],
    model: str,
    phase: str = _PHASES,
    layers: Annotated[int | None, typer.Option(min=1)] = None,
    framework: Literal["transformers"] | None = None,
    together: bool = False,
    processes: Annotated[int, typer.Option(min=1)] = DEFAULT_PROCESSES["cuda"],
    *,
    options: BuildOptions,
    record: bool = False,
    json: opt.Json = False,
) -> int:
    """Replace a kernel of a model with an implementation, and measure the effect at every level.

    The model has random weights. Single kernels (L1), the blocks (L2) and layers (L3) that call them, and the whole
    model (L4) are timed alternately with and without the implementation, in each of three processes. The predicted
    time is the time without it minus what its calls save; the verdict compares the measured speed-up with it.

    With --record, measured phases replace those recorded before; other phases are kept.

    Args:
        implementations (OPERATOR/IMPLEMENTATION): Notebooks of implementations.
        model (MODEL): Model such as `llama-3.1-8b`, or a Hugging Face `config.json` or its folder.
        phase (PHASES): Comma-separated passes: `prefill-2048` (one sequence of 2048 tokens), `decode-32` (the next
            token of 32 sequences of 1024) or, with `--framework transformers`, `train-2048` (forward and
            backward). Other numbers are possible.
        layers (N): Number of layers of the model to run. [default: all]
        framework (NAME): `transformers`: replace kernels in Hugging Face transformers' model instead of this project's
            modules. The cell's environment needs the package.
        together: Replace the kernels of all notebooks at once instead of one after the other, in the environment of the
            first.
        processes (N): Number of fresh processes per notebook.
        record: Write the records to effects/DEVICE/MODEL/, to be committed; the report shows them.
    """
    project = find_project_of(implementations)
    request = _request(model, phase, layers or 0, framework or "")
    measuring = _measuring_cells(project, implementations, together)
    names = [*measuring]
    if together:
        others = [cell for name in names[1:] for cell in measuring[name]]
        names, request = names[:1], msgspec.structs.replace(request, others=others)
    chosen = replace(options, processes=processes, request=Request(effect=request))
    result = build(project, names, chosen, PlainProgress())
    measured = {name: notebook_records(project, result, name) for name in sorted(names)}
    if json:
        print_json({path: effect_rows(records) for path, records in measured.items()})
    else:
        for path, records in measured.items():
            _print(path, request.model, result.device.name, effect_rows(records))
            for reason in {reason_of(row): None for row in records if row.effect is None}:
                print(visible(f"{path}: {reason}"))
    files = _files_to_record(project, request, measured)
    code = 0
    if files and record:
        with redirect_stdout(sys.stderr), project_lock(project, PlainProgress()):
            code = keep_records(project, files)
    elif files:
        note(
            f"pass --record to keep these results in {abbreviated([project.relative(file) for file in files])}"
        )
    return code or print_failures(result, strict=False)


def _files_to_record(
    project: Project, request: EffectRequest, measured: Mapping[str, list[Record]]
) -> dict[Path, list[Record]]:
    """Return the records of effects by the file of the project in which they are committed."""
    files = {}
    for records in measured.values():
        # What this machine cannot run is no result, and a wrong configuration no failure of an implementation.
        if any(
            row.outcome.ran or (row.outcome.failed and not (row.err and row.err.type == ModelError.__name__))
            for row in records
        ):
            others = [cell.implementation for cell in request.others]
            files[effect_file(project.root, request.model, records[0], others)] = records
    return files


def _measuring_cells(
    project: Project, implementations: Sequence[str], together: bool
) -> dict[str, list[OtherCell]]:
    """Return the cells that measure these implementations, by notebook.

    That there are none, that one computes what no model calls, or that two that are replaced ``together`` compute the
    same, is a ``NotebookError``.
    """
    measuring: dict[str, list[OtherCell]] = {}
    computed: set[str] = set()
    for path in (path for each in implementations for path in project.find_notebooks([each])):
        if not is_implementation(name := project.relative(path)):
            continue
        notebook = read_notebook(project, path)
        implementation = f"{notebook.operator}/{notebook.implementation}"
        cells = [
            OtherCell(implementation, split_header(cell.code)[0], cell.digest, cell.imported)
            for cell in notebook.cells
            if cell.measures
        ]
        if not cells:
            continue
        measuring[name] = cells
        calls = (call for cell in cells for call in find_benchmark_calls(cell.code))
        called = {call.operator for call in calls if call.operator is not None}
        if called and not called & REPLACEABLE_OPERATORS:
            what = f"computes {', '.join(sorted(called))}, which cannot be replaced in a model"
            expected = f"An implementation of {', '.join(sorted(REPLACEABLE_OPERATORS))}"
            raise NotebookError(name, what, expected)
        if together and (twice := called & computed):
            what = f"computes {min(twice)}, which another notebook replaces already"
            raise NotebookError(name, what, "One implementation per operator")
        computed |= called
    if not measuring:
        expected = "OPERATOR/IMPLEMENTATION of `kbt list`, with a cell whose `outputs=` is a JSONL file"
        raise NotebookError(", ".join(implementations), "measures no implementation", expected)
    return measuring


def _request(model: str, phase: str, layers: int, framework: str) -> EffectRequest:
    where = f"--model {model}"
    path = Path(model)
    known = model_files(CONFIGS)
    if model in known or not (path.is_dir() or path.suffix == ".json"):
        path = find_model(CONFIGS, model)
    elif path.is_dir():
        path /= "config.json"
    # On the Hub every model's file has this name.
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem
    try:
        config = parse_json(read_file(path), dict[str, object])
    except (OSError, msgspec.MsgspecError) as error:
        what = f"cannot be read ({getattr(error, 'strerror', error)})"
        raise ModelError(where, what, "A config.json of the Hub, or a model that kbt knows") from error
    shapes = config_for(framework, config, where)
    if (
        stem in known
        and config_for(framework, msgspec.json.decode(known[stem].read_bytes()), where) != shapes
    ):
        raise ModelError(where, f"differs from the {stem} that kbt knows", "", "Rename it")
    if layers > shapes.num_hidden_layers:
        most = shapes.num_hidden_layers
        raise ModelError(f"--layers {layers}", "exceeds the layers of the model", f"At most {most}")
    phases = list(dict.fromkeys(name.strip() for name in phase.split(",")))
    for name in phases:
        sizes, positions = phase_sizes(name), shapes.max_position_embeddings
        if sizes.trains and not framework:
            what = "models of this project have no backward pass"
            raise ModelError(f"--phase {name}", what, f"--framework {TRANSFORMERS}")
        if positions and sizes.context > positions:
            what = f"needs {sizes.context} positions; the model has {positions}"
            raise ModelError(f"--phase {name}", what, f"`--phase prefill-{positions}`, or fewer tokens")
    path_below(Path(EFFECTS), stem, where=where, linked=True)
    # Two files of one name must not share records.
    unique = stem if stem in known else f"{stem}-{config_digest(shapes)}"
    name = model_of_framework(unique, framework)
    return EffectRequest(model=name, config=config, phases=phases, layers=layers, framework=framework)


def _print(path: str, model: str, device: str, rows: list[EffectRow]) -> None:
    operator, _, notebook = path.partition(f"/{IMPLEMENTATIONS}/")
    for phase, shown in grouped((row.effect.phase, row) for row in rows).items():
        names = ", ".join([f"{operator}/{notebook.removesuffix('.md')}", *shown[0].effect.others])
        layers = f" with {plural(count, 'layer')}" if (count := shown[0].effect.layers) else ""
        processes = plural(shown[0].processes, "process", "es")
        print_heading(f"{names} in {model}{layers}, {phase}, on {device}, {processes}")
        lines = [["level and calls", "without\nms", "with\nms", "predicted", "measured [95 %]", "verdict"]]
        for row in shown:
            effect = row.effect
            calls = f"\n  {plural(effect.calls, 'call')}" if effect.level < MODEL_LEVEL else ""
            lines.append(
                [
                    f"L{effect.level} {effect.module}{calls}",
                    milliseconds(row.baseline_ms),
                    milliseconds(row.candidate_ms),
                    times(row.predicted) if row.predicted else "",
                    times_with_interval(row.gain),
                    row.verdict.label,
                ]
            )
        print_table(lines, right=range(1, 5), optional=(2, 1))
        for line in _notes(shown):
            print_wrapped(line)
        print()
        if breakdown := breakdown_of(shown):
            _print_breakdown(breakdown)


def _print_breakdown(breakdown: Breakdown) -> None:
    lines = [["kernel, in a pass without it", "calls", "alone ms", "in the pass ms", "share"]]
    for part in breakdown.parts:
        name, calls = (part.module, str(part.calls)) if part.module else ("outside of kernels", "")
        alone = "" if part.alone_ms is None else milliseconds(part.alone_ms)
        share = f"{part.ms / breakdown.total_ms:.1%}" if breakdown.total_ms else ""
        lines.append([name, calls, alone, milliseconds(part.ms), share])
    print_table(lines, right=range(1, 5))
    for how, ms in breakdown.idle.items():
        print(f"{how}: GPU idle time {milliseconds(ms)} ms of a pass\n")


def _notes(rows: list[EffectRow]) -> list[str]:
    effect = rows[0].effect
    missing = f"; not {', '.join(effect.missing)}" if effect.missing else ""
    lines = [f"{effect.called} of {plural(effect.replaced, 'instance')} replaced and called{missing}"]
    if effect.kept:
        kept = ", ".join(f"{count} {name}" for name, count in effect.kept.items())
        lines.append(f"without a kernel in this mode on this device: {kept}")
    noise = [f"{row.noise:.1%} ({row.effect.module})" for row in rows if row.effect.level == MODEL_LEVEL]
    if noise:
        lines.append(f"noise floor, between two samples of the model without it: {', '.join(noise)}")
    for row in rows:
        module, values = row.effect.module, row.agreement
        if "top1" in values:
            same, tokens = values["top1"], int(values.get("untied", 0))
            top1 = (
                f"{round(same * tokens)} of {plural(tokens, 'token')}" if tokens else f"{same:.2%} of tokens"
            )
            error = f"relative error {values['relative_error']:.1e}, KL divergence {values['kl']:.1e}"
            lines.append(f"logits: {error}, top-1 agreement {top1}")
        if "gradients" in values:
            worst = f"{values['gradients']:.1e}, of the worst weight {values['worst_gradient']:.1e}"
            lines.append(f"relative errors: loss {values['loss']:.1e}, gradients {worst}")
        if "experts" in values:
            lines.append(
                f"routed experts: {values['experts']:.2%} agree; logits are compared with the same ones"
            )
        lines += [f"{module}: {name} {old} -> {new}" for name, old, new in row.costs]
    return lines
