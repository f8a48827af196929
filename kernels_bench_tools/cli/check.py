"""``kbt check``: find problems in notebooks without running them."""

from __future__ import annotations

import sys
from pathlib import Path

from kernels_bench_tools.cli import USER_MISTAKE
from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import note, print_json
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.notebooks.survey import survey_project


def check(json: Json = False) -> int:
    """Check all notebooks without running them.

    Checks front matter, cells, attributes and needs. Exits with 1 if there are problems.
    """
    survey = survey_project(find_project(Path.cwd()))
    problems, advice = survey.problems(), survey.advice()
    if json:
        print_json({"problems": [str(problem) for problem in problems], "advice": advice})
        return USER_MISTAKE if problems else 0
    for problem in problems:
        print(problem, file=sys.stderr)
    for text in advice:
        note(text)
    print(f"{len(survey.notebooks)} notebooks, {len(problems)} problems, {len(advice)} notes")
    return USER_MISTAKE if problems else 0
