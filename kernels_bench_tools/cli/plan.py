"""``kbt plan``: which cells a build would run, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.output import note_unused, print_json
from kernels_bench_tools.notebooks.project import find_project_of
from kernels_bench_tools.records.build import FORWARD
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.run.plan import AffectedNotebook, CellPlan, PlannedAction, find_affected, plan_build
from kernels_bench_tools.text import few, plural, visible


@takes_build_options("env", "retry_failed", "workloads", "mode", "processes")
def plan(
    paths: opt.Paths = None,
    since: str = "",
    *,
    options: BuildOptions,
    json: opt.Json = False,
) -> None:
    """Show which cells a build would run, and why.

    Nothing is run or written. Pass the same options as to the build: other workloads, for example, need other
    measurements. A cell that needs one of these cells is shown as *may run*: it runs only if their outputs change.

    Args:
        since (REV): List the notebooks affected by changes since this git revision, regardless of stored results.
            As JSON, a list for `strategy.matrix.include` of a GitHub workflow.
    """
    project = find_project_of(paths or ())
    if since:
        unused = {
            "--workloads": options.workloads,
            "--mode": options.mode != FORWARD,
            "--processes": options.processes,
        }
        note_unused(unused, "with --since, which does not look at results")
        affected = find_affected(project, paths or [], since, options.environment)
        if json:
            print_json(affected)
        else:
            print(visible(_describe_affected(affected)))
        return
    cells = plan_build(project, paths or [], options)
    if json:
        counts = {action.value: 0 for action in PlannedAction} | Counter(cell.action.value for cell in cells)
        print_json({"counts": counts, "cells": cells})
    else:
        print(visible(_describe_plan(cells)))


def _describe_plan(cells: Sequence[CellPlan]) -> str:
    """Return a line for each cell that is not unchanged, and one with the counts."""
    lines = [
        f"{cell.action.value:11}  {cell.cell}  {_explain(cell)}"
        for cell in cells
        if cell.action is not PlannedAction.UNCHANGED
    ]
    counts = Counter(cell.action for cell in cells)
    counted = [f"{counts[action]} {words}" for action, words in _COUNTED.items() if counts[action]]
    return "\n".join([*lines, ", ".join(counted) or "no cells"])


def _explain(cell: CellPlan) -> str:
    reasons = [cell.reason] if cell.reason else []
    if cell.changed:
        reasons.append(f"changed: {few(cell.changed)}")
    if cell.upstream:
        reasons.append(f"needs {few(cell.upstream)}")
    return "; ".join(reasons)


def _describe_affected(affected: Sequence[AffectedNotebook]) -> str:
    """Return a line for each affected cell, and one with the counts."""
    lines = [
        f"{notebook.notebook}:{cell}  changed: {few(notebook.changed[cell])}"
        for notebook in affected
        for cell in notebook.cells
    ]
    cells = plural(sum(len(notebook.cells) for notebook in affected), "cell")
    return "\n".join([*lines, f"affected: {plural(len(affected), 'notebook')}, {cells}"])


_COUNTED = {
    PlannedAction.RUN: "would run",
    PlannedAction.MAY_RUN: "may run",
    PlannedAction.UNSUPPORTED: "cannot run here",
    PlannedAction.UNCHANGED: "unchanged",
}
