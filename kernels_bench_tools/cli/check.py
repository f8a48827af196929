"""``kbt check``: find problems in notebooks and committed records without running anything."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import PurePosixPath

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.options import Json, Paths
from kernels_bench_tools.cli.output import note, print_json
from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.notebooks.project import Project, find_project_of
from kernels_bench_tools.notebooks.project import operators as project_operators
from kernels_bench_tools.notebooks.survey import cell_problems, html_advice, module_problems, survey_project
from kernels_bench_tools.notebooks.upgrade import harness_advice
from kernels_bench_tools.own_process import python_command, run_program
from kernels_bench_tools.records.codec import read_committed
from kernels_bench_tools.records.committed import effect_files, record_files
from kernels_bench_tools.records.notebook import is_implementation, operator_of
from kernels_bench_tools.records.selfcheck import read_selfchecks
from kernels_bench_tools.records.settings import operator_modules
from kernels_bench_tools.report.operators import unknown_names
from kernels_bench_tools.text.words import plural


def check(paths: Paths = None, operators: bool = False, json: Json = False) -> int:
    """Check notebooks and committed records without running anything.

    Checks front matter, cells, attributes, needs, headers, the syntax of cells and operator modules, calls of
    run_benchmark, names in placeholders, every line of committed records, and files of self-checks.

    Args:
        operators: Also run each operator of the project once, on the CPU with its smallest inputs.
    """
    project = find_project_of(paths or ())
    survey = survey_project(project)
    chosen = project.find_notebooks(paths or [])
    names = [project.relative(path) for path in chosen]
    problems: list[KbtError] = [*survey.problems(names)]
    problems += cell_problems(survey.notebooks[name] for name in sorted(names))
    advice = (
        [] if names else ["no notebooks were found; links, hidden folders and other projects are skipped"]
    )
    for operator, notebooks in project_operators(project).items():
        if not {*notebooks} & {*chosen}:
            continue
        files = {
            project.relative(path): read_committed(project.root, path, problems.append)
            for path in record_files(project.root / operator)
        }
        stems = {path.stem for path in notebooks}
        gone = [name for name, rows in files.items() if rows and PurePosixPath(name).stem not in stems]
        remedy = "Remove the file or, if the notebook was renamed, rename it and each `impl` in it."
        advice += [
            f"{name}: no notebook has this name, but its rows are still shown. {remedy}" for name in gone
        ]
    if not paths:  # these belong to several notebooks
        problems += module_problems(project)
        problems += _run_operators(project) if operators else []
        for path in effect_files(project.root):
            read_committed(project.root, path, problems.append)
        problems += read_selfchecks(project.root).problems
    advice += survey.advice(names) + harness_advice(project, survey)
    prose = [*survey.prose(names)]
    families = {
        notebook.front.family for name, notebook in survey.notebooks.items() if is_implementation(name)
    }
    folders = {operator_of(name) for name in survey.notebooks}
    for name, text in prose:
        advice += map(str, unknown_names(name, text, folders, families))
    advice += html_advice(project, prose)
    if json:
        print_json({"problems": [str(problem) for problem in problems], "advice": advice})
        return FAILURE if problems else 0
    for problem in problems:
        print(problem, file=sys.stderr)
    for text in advice:
        note(text)
    counts = plural(len(names), "notebook"), plural(len(problems), "problem"), plural(len(advice), "note")
    print(", ".join(counts))
    return FAILURE if problems else 0


def _run_operators(project: Project) -> list[KbtError]:
    """Return the mistakes in what the project's operators do."""
    names = [*operator_modules(project.operators_folder)]
    if names and find_spec("torch") is None:
        raise KbtError(
            "kbt check --operators",
            "torch is not installed in the environment of kbt",
            "",
            "Run `pip install torch`",
        )
    folder, module = str(project.operators_folder), "kernels_bench_tools.measure.correctness"
    done = run_program(python_command("-m", module, folder, *names))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [KbtError("kbt check --operators", f"its process failed: {last}")]
    places = (line.partition(": ")[::2] for line in done.stdout.splitlines())
    return [KbtError(where, what) for where, what in places if what]
