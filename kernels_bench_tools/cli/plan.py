"""``kbt plan``: which cells a build would run, and why."""

from __future__ import annotations

from collections import Counter

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.output import note_unused, print_json
from kernels_bench_tools.notebooks.project import find_project_of
from kernels_bench_tools.records.request import FORWARD
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.plan import PlannedAction, find_affected, plan_build
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.words import abbreviated, plural


@takes_build_options("env retry_failed workloads mode sustained processes")
def plan(paths: opt.Paths = None, since: str = "", *, options: BuildOptions, json: opt.Json = False) -> None:
    """Show which cells a build would run, and why.

    Runs and writes nothing. Pass the same options as to the build: other workloads, for example, need other measurements.
    Cells that need one of these are shown as *may run*: they run only if its outputs change.

    Args:
        since (REV): List the notebooks affected by changes since this Git revision, regardless of stored results.
            As JSON, a list for `strategy.matrix.include` of a GitHub workflow.
    """
    project = find_project_of(paths or ())
    if since:
        unused = {
            "--workloads": options.request.workloads,
            "--mode": options.request.mode != FORWARD,
            "--sustained": options.request.sustained,
            "--processes": options.processes,
        }
        note_unused(unused, "with --since, which ignores results")
        affected = find_affected(project, paths or [], since, options.environment)
        if json:
            print_json(affected)
            return
        for notebook in affected:
            for cell_id, changed in notebook.changed.items():
                print(visible(f"{notebook.notebook}:{cell_id}  changed: {abbreviated(changed)}"))
        total = plural(sum(len(notebook.cells) for notebook in affected), "cell")
        print(f"affected: {plural(len(affected), 'notebook')}, {total}")
        return
    cells = plan_build(project, paths or [], options)
    if json:
        counts = {action.value: 0 for action in PlannedAction} | Counter(cell.action.value for cell in cells)
        print_json({"counts": counts, "cells": cells})
        return
    for cell in cells:
        if cell.action is not PlannedAction.UNCHANGED:
            reasons = [cell.reason] if cell.reason else []
            reasons += [f"changed: {abbreviated(cell.changed)}"] if cell.changed else []
            reasons += [f"needs {abbreviated(cell.upstream)}"] if cell.upstream else []
            print(visible(f"{cell.action.value:11}  {cell.cell}  {'; '.join(reasons)}"))
    number = Counter(cell.action for cell in cells)
    counted = [f"{number[action]} {words}" for action, words in _COUNTED.items() if number[action]]
    print(", ".join(counted) or "no cells")


_COUNTED = {
    PlannedAction.RUN: "would run",
    PlannedAction.MAY_RUN: "may run",
    PlannedAction.UNSUPPORTED: "cannot run here",
    PlannedAction.BROKEN: "left out because of errors in their notebooks",
    PlannedAction.UNCHANGED: "unchanged",
}
