"""``kbt history``: how the times of an operator's implementations changed from commit to commit, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.compare import timed
from kernels_bench_tools.cli.output import print_heading, print_json, terminal_width
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.git import Repository
from kernels_bench_tools.notebooks.project import find_project, operators
from kernels_bench_tools.records.summary import ChangeKind
from kernels_bench_tools.results.history import TIMED, Step, read_history, record_paths
from kernels_bench_tools.text import deviation, did_you_mean, grouped, plural, table, visible


def history(
    rows: Annotated[str, typer.Argument()], workload: str = "", device: str = "", json: opt.Json = False
) -> None:
    """Show how times changed from commit to commit, and why.

    Reads the committed records of all revisions from git. Each line is a measurement, with what differs from the one before:
    code, toolchain, operator, harness or device. *Slower* and *faster* need intervals apart, and more than 0.5 % and the
    row's noise, which is known from measurements between which nothing changed.

    Args:
        rows (OPERATOR[/IMPLEMENTATION]): Whose times.
        workload (NAME): Only this workload.
        device (SLUG): Only this device.
    """
    project = find_project(Path.cwd())
    known = [*operators(project)]
    operator, _, implementation = (rows, "", "") if rows in known else rows.rpartition("/")
    operator, implementation = (operator, implementation) if operator else (implementation, "")
    steps = read_history(Repository(project.root), [record_paths(operator, implementation)])
    found = [one for one in steps if one.row.workload == (workload or one.row.workload)]
    found = [one for one in found if one.row.device == (device or one.row.device)]
    if not found:
        names = {one.row.workload for one in steps} if workload else {*known}
        hint = did_you_mean(
            workload or operator, sorted(names), "`kbt list --records` shows what was measured"
        )
        what = "no commit has records of it"
        raise ProjectError(" ".join(filter(None, [rows, workload, device])), what, "", hint)
    if json:
        print_json({"rows": [step.as_data() for step in found]})
        return
    for (name, slug), own in grouped(((step.row[:2], step.row.device), step) for step in found).items():
        print_heading(f"{'/'.join(name)} on {slug}")
        print(visible(table([_HEAD, *map(_line, own)], right=[3, 4], width=terminal_width())))
    changed = [step for step in found if step.kind in TIMED]
    unexplained = sum(step.unexplained for step in changed)
    print(
        f"{plural(len(found), 'measurement')}, {plural(len(changed), 'change')} of time, {unexplained} unexplained"
    )


_HEAD = ["workload", "measured", "commit", "ms [95 %]", "change", "verdict", "cause"]


def _line(step: Step) -> list[str]:
    assert step.after
    assert step.commit
    day, name = step.after.time[:10], step.commit.name[:8]
    change = deviation(step.ratio.value - 1) if step.ratio else ""
    verdict = "" if step.kind is ChangeKind.NEW else step.kind.label
    return [step.row.workload, day, name, timed(step.after), change, verdict, step.why]
