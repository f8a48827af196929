"""``kbt check``: every problem in every notebook, without running anything."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from kernels_bench_tools.cli import USER_MISTAKE
from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.notebooks.check import check_advice, check_project
from kernels_bench_tools.notebooks.project import find_project


def check(json: Json = False) -> int:
    """Check all notebooks: front matter, cells, attributes, needs. Exit with 1 if something is wrong."""
    project = find_project(Path.cwd())
    problems = check_project(project)
    advice = check_advice(project)
    if json:
        data = {"problems": [str(problem) for problem in problems], "advice": advice}
        print(msgspec.json.encode(data).decode())
        return USER_MISTAKE if problems else 0
    for problem in problems:
        print(problem, file=sys.stderr)
    for text in advice:
        print(f"note: {text}", file=sys.stderr)
    notebooks = len(project.notebook_paths())
    print(f"{notebooks} notebooks, {len(problems)} problems, {len(advice)} notes")
    return USER_MISTAKE if problems else 0
