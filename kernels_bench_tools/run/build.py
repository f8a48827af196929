"""Builds: run the cells that targets name, as far as their results are not known."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file, write_struct
from kernels_bench_tools.git import Checkout
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import CellPolicy, Project
from kernels_bench_tools.notebooks.survey import Survey, select_cells, select_notebooks, survey_targets
from kernels_bench_tools.own_process import PACKAGE_FOLDER, is_credential
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun, ProjectInfo, Prose
from kernels_bench_tools.records.device import current_device, gpus_alike
from kernels_bench_tools.records.model import DERIVED, model_files
from kernels_bench_tools.records.request import DRAWN_SET, FORWARD, Request
from kernels_bench_tools.records.settings import OPERATORS, operator_modules
from kernels_bench_tools.run.cache.key import Fingerprints
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.cell import describe_cell
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.run.executor import Executor, LocalExecutor
from kernels_bench_tools.run.locks import project_lock, signals_as_interrupt
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.progress import Progress, serialize
from kernels_bench_tools.run.schedule import Execution
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.words import did_you_mean

CORES_PER_GPU = 8
"""A machine with fewer measures on one GPU only: sessions beside each other, and what runs beside them, would wait for cores."""
REPORT_NAME = "build.json"
"""File in the project's state with the result of every cell, for the pages."""


def build(
    project: Project,
    targets: Sequence[str],
    options: BuildOptions,
    progress: Progress,
    show: Callable[[BuildRun], None] | None = None,
) -> BuildRun:
    """Run the cells that ``targets`` name, and what they need, as far as their results are not known.

    Targets are notebooks, folders, operators, ``operator/implementation`` or ``NOTEBOOK:CELL``; none for everything.
    ``show`` publishes the results so far of a long build: before it measures, and when an operator is finished. The
    result has every notebook of the project; cells that are not targets have their last result.

    Raises:
        NotebooksError: Something is wrong with all notebooks concerned, or with the only one of a target; nothing has run.
        KeyboardInterrupt: The build was interrupted; finished results are kept.
    """
    environment = find_environment(options.environment)
    survey, cells, rerun = _select(project, targets, options)
    progress = serialize(progress)
    with ExitStack() as stack:
        waited = stack.enter_context(project_lock(project, progress))
        stack.enter_context(signals_as_interrupt())
        if waited:  # the notebooks may have been edited meanwhile
            survey, cells, rerun = _select(project, targets, options)
        executor: Executor
        if options.executor is None:
            executor = LocalExecutor(
                project, current_device(), environment, options.jobs, progress, gpus=several_gpus()
            )
        else:
            executor = options.executor(project, options.environment, progress)
        stack.callback(executor.close)
        wrong = {*select_notebooks(project, survey, targets), *(name.notebook for name in cells)}
        for name, problems in survey.broken.items():
            for problem in problems if name in wrong else problems[:1]:
                progress.note(f"left out: {problem}")
        wrong &= survey.broken.keys()
        cache = CellCache(project.state, progress.note)
        cache.sweep()
        execution = Execution(
            executor=executor,
            fingerprints=Fingerprints(
                project, survey.graph, executor.device, executor.identity, options.request
            ),
            cache=cache,
            checkout=Checkout(project.root),
            progress=progress,
            options=options,
            policy=_policy(project.policy, options, progress),
            broken=survey.broken,
        )
        if show is not None:
            execution.publication.show = lambda: show(_describe(survey, options, execution, wrong))
        try:
            execution.run(cells, rerun)
        finally:
            if not survey.broken:
                cache.forget_all_but(survey.graph.nodes)
            # Also after an interruption: finished results can be recorded, and replace those of the build before.
            run = _describe(survey, options, execution, wrong)
            if options.request.effect is None and not options.aside:  # else they are no results of the report
                cache.save_last()
                write_struct(project.state / REPORT_NAME, run, own=True)
        if cache.grew:
            cache.prune(project.cache_size)
        return run


def several_gpus() -> Sequence[str]:
    """Return the GPUs of this machine that measure beside each other, as ``CUDA_VISIBLE_DEVICES`` names them, or none."""
    gpus = gpus_alike()
    return gpus if len(gpus) > 1 and CORES_PER_GPU * len(gpus) <= (os.cpu_count() or 1) else ()


def _policy(policy: CellPolicy, options: BuildOptions, progress: Progress) -> CellPolicy:
    """Return what cells may use: of the variables that the settings name, which may be a stranger's, no credentials."""
    asked = [name for name in policy.pass_env if name not in options.pass_env]
    secret = [name for name in asked if is_credential(name, os.environ.get(name, ""))]
    if secret:
        what = f"{' and '.join(secret)} may contain credentials and will not be passed to cells"
        remedy = f"If you trust them, add {' '.join(f'--pass-env {name}' for name in secret)}"
        progress.note(str(ProjectError("pyproject.toml: pass_env", what, "", remedy)))
    passed = (*(name for name in asked if name not in secret), *options.pass_env)
    limit = options.memory_limit or policy.memory_limit
    return msgspec.structs.replace(policy, memory_limit=limit, pass_env=passed)


def _select(
    project: Project, targets: Sequence[str], options: BuildOptions
) -> tuple[Survey, list[CellName], set[CellName]]:
    """Return the notebooks, the selected cells with what they need in a possible order, and those to run again."""
    again = targets if options.rerun is True else options.rerun or ()
    survey, cells = survey_targets(project, targets, again)
    check_workloads(project, [survey.graph.nodes[name] for name in cells], options.request)
    rerun = select_cells(project, survey, again) if options.rerun else []
    return survey, cells, set(rerun)


def check_workloads(project: Project, nodes: Iterable[Node], request: Request) -> None:
    """Raise a ``ProjectError`` for a workload set, or a mode, that none of the operators of these cells has."""
    modules = operator_modules(PACKAGE_FOLDER / OPERATORS) | operator_modules(project.operators_folder)
    operators = sorted({node.notebook.operator.rpartition("/")[2] for node in nodes if node.cell.measures})
    known = [modules[name] for name in operators if name in modules]
    if (
        request.mode != FORWARD
        and operators
        and len(known) == len(operators)
        and all(map(_is_forward, known))
    ):
        what = f"none of the operators ({', '.join(operators)}) defines gradients"
        raise ProjectError(f"--mode {request.mode}", what, f"--mode {FORWARD}")
    sets = [_workload_sets(module) for module in known]
    if not sets or not all(sets) or not request.workloads:
        return
    names = list(dict.fromkeys(chain.from_iterable(sets)))
    asked = [name.strip() for name in request.workloads.split(",")]
    drawn = filter(None, map(DRAWN_SET.fullmatch, asked))
    for name in (*asked, *(name for match in drawn if match[3] for name in match[3].split("+"))):
        if name not in names and not DRAWN_SET.fullmatch(name):
            what = "no operator has this workload set"
            expected = f"One of {', '.join(names)}, random:COUNT:SEED, or several of them separated by commas"
            raise ProjectError(f"--workloads {name}", what, expected, did_you_mean(name, names))


def _is_forward(module: Path) -> bool:
    """Return whether an operator has no backward pass, as far as its module says without being run."""
    try:
        code = read_file(module)
    except OSError:
        return False
    return b"Operator(" in code and b"gradients" not in code


def _workload_sets(module: Path) -> list[str]:
    """Return the names of an operator's workload sets without running its module; empty if it computes them."""
    try:
        tree = ast.parse(read_file(module))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # named where the cell runs
        return []
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword))
    sets = next((keyword.value for keyword in keywords if keyword.arg == "workload_sets"), None)
    names: list[str] = []
    for key, value in zip(sets.keys, sets.values, strict=True) if isinstance(sets, ast.Dict) else ():
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            names.append(key.value)
        elif key is None and isinstance(value, ast.Call) and ast.unparse(value.func) == "model_sets":
            names += model_files(DERIVED)
        else:
            return []
    return names


def _describe(survey: Survey, options: BuildOptions, execution: Execution, wrong: Iterable[str]) -> BuildRun:
    """Return every notebook with the results of its cells, as far as they have any."""
    cache, project, results = execution.cache, execution.fingerprints.project, execution.results

    def describe(name: CellName, cell: Cell) -> CellRun:
        entry = None if cell.commented else results.settled.get(name) or cache.last(name)
        cached = entry is not None and name not in results.new
        run = describe_cell(project, cell, entry, cached, survey.notebooks[name.notebook].front.expect)
        for folder in results.unfinished.get(name, ()):
            run.unfinished += map(project.relative, sorted(folder.rglob("*.jsonl")))
        return run

    whole = [notebook for notebook in survey.notebooks.values() if notebook.name not in execution.broken]
    return BuildRun(
        project=ProjectInfo(
            title=project.title,
            repository=project.repository,
            commit=execution.checkout.commit,
            raw_html=bool(project.raw_html),
        ),
        device=execution.executor.device,
        environment=options.environment,
        measures=options.measure,
        notebooks=[describe_notebook(notebook, describe) for notebook in whole],
        # Escaped, since a path that is not UTF-8 can be in no file.
        selected=sorted([*map(str, results.settled), *map(visible, wrong)]),
        left_out={visible(name): [*map(visible, problems)] for name, problems in execution.broken.items()},
    )


def describe_notebook(notebook: Notebook, describe: Callable[[CellName, Cell], CellRun]) -> NotebookRun:
    """Return a notebook as a page shows it; ``describe`` returns each of its cells."""
    blocks = [
        describe(CellName(notebook.name, block.id), block) if isinstance(block, Cell) else Prose(text=block)
        for block in notebook.blocks
    ]
    return NotebookRun(path=notebook.name, digest=notebook.digest, front=notebook.front, blocks=blocks)
