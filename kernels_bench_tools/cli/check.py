"""``kbt check``: find problems in notebooks and committed records without running anything."""

from __future__ import annotations

import sys
from pathlib import Path

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import note, print_json
from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.notebooks.project import find_project, operators
from kernels_bench_tools.notebooks.survey import survey_project
from kernels_bench_tools.notebooks.upgrade import harness_advice
from kernels_bench_tools.schema.record_io import read_committed


def check(json: Json = False) -> int:
    """Check all notebooks and committed records without running anything.

    Checks front matter, cells, attributes, needs, and each line of records. Exits with 1 if there are problems.
    """
    project = find_project(Path.cwd())
    survey = survey_project(project)
    problems: list[KbtError] = [*survey.problems()]
    for operator, notebooks in operators(project).items():
        for path in sorted(notebooks[0].parents[1].glob("results/records/*/*.jsonl")):
            read_committed(path, operator, project.relative(path), problems.append)
    advice = survey.advice() + harness_advice(project, survey)
    if json:
        print_json({"problems": [str(problem) for problem in problems], "advice": advice})
        return FAILURE if problems else 0
    for problem in problems:
        print(problem, file=sys.stderr)
    for text in advice:
        note(text)
    print(f"{len(survey.notebooks)} notebooks, {len(problems)} problems, {len(advice)} notes")
    return FAILURE if problems else 0
