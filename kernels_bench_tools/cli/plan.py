"""``kbt plan``: what a build would run, and why, before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kernels_bench_tools.cli.options import (
    Env,
    EnvironmentChoice,
    Mode,
    ModeChoice,
    Paths,
    Processes,
    Workloads,
)
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.run.affected import AffectedNotebook, find_affected
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.run.plan import CellPlan, PlannedAction, plan_build

_NAMED = 3
"""How many cells or ingredients a line names before it counts the rest."""


class Format(StrEnum):
    """How to print."""

    TEXT = "text"
    JSON = "json"


def plan(
    paths: Paths = None,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="REV",
            help="Name the notebooks that the changes since this revision of git affect, whatever is stored here. "
            "The JSON is a list, fit for `strategy.matrix.include` of a GitHub workflow.",
        ),
    ] = "",
    env: Env = EnvironmentChoice.UV,
    workloads: Workloads = "",
    mode: Mode = ModeChoice.FWD,
    processes: Processes = 0,
    output: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TEXT,
) -> None:
    """Say which cells a build would run, and what makes them stale. Nothing runs, nothing is written.

    Give the options that the build will get: other workloads, for example, are another measurement. A cell that
    needs one that would run *may run*: it does unless that one leaves the same as last time.
    """
    project = find_project(Path.cwd())
    if since:
        affected = find_affected(project, paths or [], since, env.value)
        print(_as_json(affected) if output is Format.JSON else describe_affected(affected))
        return
    options = BuildOptions(environment=env.value, workloads=workloads, mode=mode.value, processes=processes)
    cells = plan_build(project, paths or [], options)
    if output is Format.JSON:
        counts = {action.value: 0 for action in PlannedAction} | Counter(cell.action.value for cell in cells)
        print(_as_json({"counts": counts, "cells": cells}))
    else:
        print(describe_plan(cells))


def describe_plan(cells: Sequence[CellPlan]) -> str:
    """Return a line for each cell that would not stay as it is, and one that counts."""
    lines = [
        f"{cell.action.value:11}  {cell.cell}  {explain(cell)}"
        for cell in cells
        if cell.action is not PlannedAction.UNCHANGED
    ]
    counts = Counter(cell.action for cell in cells)
    told = [f"{counts[action]} {_COUNTED[action]}" for action in _COUNTED if counts[action]]
    return "\n".join([*lines, ", ".join(told) or "there are no cells"])


def explain(cell: CellPlan) -> str:
    """Return why a cell is not unchanged, in one line."""
    reasons = [cell.reason] if cell.reason else []
    if cell.changed:
        reasons.append(f"changed: {_few(cell.changed)}")
    if cell.upstream:
        reasons.append(f"needs {_few(cell.upstream)}")
    return "; ".join(reasons)


def describe_affected(affected: Sequence[AffectedNotebook]) -> str:
    """Return a line for each cell that changes affect, and one that counts."""
    lines = [
        f"{one.notebook}:{cell}  changed: {_few(one.changed[cell])}" for one in affected for cell in one.cells
    ]
    counts = ((len(affected), "notebook"), (sum(len(one.cells) for one in affected), "cell"))
    counted = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts]
    return "\n".join([*lines, f"affected: {', '.join(counted)}"])


_COUNTED = {
    PlannedAction.RUN: "would run",
    PlannedAction.MAY_RUN: "may run",
    PlannedAction.UNSUPPORTED: "cannot run here",
    PlannedAction.UNCHANGED: "unchanged",
}


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _as_json(data: object) -> str:
    return msgspec.json.encode(data).decode()
