"""``kbt compare``, ``kbt history`` and ``kbt export``: which times changed, and why; the times for other dashboards."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.choose import forward_summaries
from kernels_bench_tools.cli.output import note_problem, print_heading, print_json, print_table
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.git import Repository
from kernels_bench_tools.notebooks.document import survey_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.records.model import OPERATORS
from kernels_bench_tools.records.summary import ChangeKind
from kernels_bench_tools.results.export import bencher_metrics, pytorch_metrics
from kernels_bench_tools.results.history.causes import Measurement, RowName
from kernels_bench_tools.results.history.changes import CHANGED, TIMED, Step, count_changes
from kernels_bench_tools.results.history.states import (
    Place,
    compare_states,
    read_history,
    read_report,
    record_paths,
)
from kernels_bench_tools.results.models import Share, model_shares
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.numbers import deviation, interval, milliseconds
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import did_you_mean, plural

BAD = frozenset({ChangeKind.FAILS, ChangeKind.SLOWER})
_MOST = 200
"""Rows of a comment; a pull request's may have 65,536 characters."""
_HEAD = ("implementation", "workload", "base ms", "head ms", "difference", "verdict", "cause", "in a model")


def compare(
    base: Annotated[str, typer.Argument()],
    head: Annotated[str, typer.Argument()] = "",
    every: Annotated[bool, typer.Option("--all")] = False,
    json: opt.Json = False,
    markdown: bool = False,
    fail_on: Literal["slower"] | None = None,
) -> int:
    """Show which rows changed between two states, by how much, and why.

    A state is a Git revision, the report.json of a build, or a folder of records. A row is *slower* or *faster* if the
    intervals do not overlap and the difference exceeds 0.5 % and the row's noise, corrected for the number of rows. Rows
    that were not measured again are left out. Times of different sessions may differ because of the device: `kbt gate`
    measures both versions in one session.

    Args:
        base (BASE): Such as HEAD~5, origin/main or report.json.
        head (HEAD): The same. [default: the working tree]
        every: Also show rows that are unchanged, new, removed or without a verdict.
        markdown: Print Markdown for a comment on a pull request.
        fail_on (slower): Exit with 1 if a row is slower or fails now.
    """
    project = find_project()
    steps = compare_states(place_of(project), base, head)
    print_steps(project, steps, json=json, markdown=markdown, every=every)
    return FAILURE if fail_on and any(step.kind in BAD for step in steps) else 0


def place_of(project: Project) -> Place:
    def read_digests(name: str, data: bytes) -> dict[str, str]:
        return survey_notebook(replace(project, variants={name: data}), project.root / name).digests

    return Place(project.root, [*operators(project)], note_problem, read_digests)


def print_steps(
    project: Project, steps: Sequence[Step], *, json: bool = False, markdown: bool = False, every: bool = True
) -> None:
    """Print how many rows changed, and a line for each, or for each that changed."""
    shares: dict[RowName, list[Share]] = {}
    if changed := [step for step in steps if step.kind in TIMED and step.row.operator in OPERATORS]:
        summaries = forward_summaries(project, [name for name in operators(project) if name in OPERATORS])
        shares = model_shares(
            summaries, {step.row: step.times[1].value - step.times[0].value for step in changed}
        )
    if json:
        models = [[share._asdict() for share in shares.get(step.row, ())] for step in steps]
        rows = [{**step.as_data(), "models": own} for step, own in zip(steps, models, strict=True)]
        print_json({"summary": count_changes(steps), "rows": rows})
        return
    lines = [_line(step, shares.get(step.row, ())) for step in steps if every or step.kind in CHANGED]
    if not markdown:
        print(visible(count_changes(steps)))
        for name, own in grouped((line[0], line[1:]) for line in lines).items():
            print_heading(name)
            print_table([_HEAD[1:], *own], right=[1, 2], optional=[6, 1])
        return
    print(f"**{_escaped(count_changes(steps))}**")
    if lines:
        print(f"\n| {' | '.join(_HEAD)} |\n|{' --- |' * len(_HEAD)}")
    for line in lines[:_MOST]:
        print(f"| {' | '.join(map(_escaped, line))} |")
    if len(lines) > _MOST:
        print(f"\nand {len(lines) - _MOST} more")


def _line(step: Step, shares: Sequence[Share]) -> list[str]:
    ratio, difference = step.ratio, ""
    if ratio:
        ends = f" [{deviation(ratio.low - 1)}, {deviation(ratio.high - 1)}]" if ratio.known else ""
        difference = f"{deviation(ratio.value - 1)}{ends}"
    workload = " with ".join(filter(None, step.row[3:]))
    row = [f"{step.row.operator}/{step.row.implementation} on {step.row.device}", workload]
    times = [timed(side).partition(" [")[0] if side else "" for side in (step.before, step.after)]
    return [*row, *times, difference, step.kind.label, step.why, str(shares[0]) if shares else ""]


def timed(side: Measurement) -> str:
    """Return a time in ms with its interval, or why there is none."""
    time = side.estimate
    if not time:
        return side.status.label
    return f"{milliseconds(time.value)} {interval(time)}".rstrip()


def _escaped(text: str) -> str:
    """Return a text of records in a comment: no markup, links or mentions."""
    plain = html.escape(visible(text), quote=False)
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]()#+!|~@:/" else sign for sign in plain)


def history(
    rows: Annotated[str, typer.Argument()], workload: str = "", device: str = "", json: opt.Json = False
) -> None:
    """Show how times changed from commit to commit, and why.

    Reads the committed records of all revisions from Git. Each line is a measurement and what changed since the previous
    one: code, toolchain, operator, harness or device. A time is *slower* or *faster* if the intervals do not overlap and
    the difference exceeds 0.5 % and the row's noise, which is known from measurements between which nothing changed.

    Args:
        rows (OPERATOR[/IMPLEMENTATION]): Rows to show.
        workload (NAME): Only this workload.
        device (SLUG): Only this device.
    """
    project = find_project()
    known = [*operators(project)]
    operator, implementation = (rows, "") if rows in known or "/" not in rows else rows.rsplit("/", 1)
    steps = read_history(Repository(project.root), [record_paths(operator, implementation)])
    chosen = [
        step for step in steps if workload in {"", step.row.workload} and device in {"", step.row.device}
    ]
    if not chosen:
        names = {step.row.workload for step in steps} if workload else {*known}
        hint = did_you_mean(workload or operator, names, "`kbt list --records` shows what was measured")
        what = "has no records in any commit"
        raise ProjectError(" ".join(filter(None, [rows, workload, device])), what, "", hint)
    if json:
        print_json({"rows": [step.as_data() for step in chosen]})
        return
    for row, own in grouped((step.row, step) for step in chosen).items():
        print_heading(f"{row.operator}/{row.implementation} {row.workload}, {row.device}")
        lines = [["measured", "commit", "ms [95 %]", "change", "verdict", "cause"]]
        for step in own:
            assert step.after
            assert step.commit
            measured = [step.after.time[:10], step.commit.name[:8], timed(step.after)]
            change = deviation(step.ratio.value - 1) if step.ratio else ""
            verdict = "" if step.kind is ChangeKind.NEW else step.kind.label
            lines.append([*measured, change, verdict, step.why])
        print_table(lines, right=[2, 3], optional=[0])
    changed = [step for step in chosen if step.kind in TIMED]
    unexplained = sum(step.unexplained for step in changed)
    print(
        f"{plural(len(chosen), 'measurement')}, {plural(len(changed), 'change')} of time, {unexplained} unexplained"
    )


def export(
    form: Annotated[Literal["bencher", "pytorch"], typer.Argument(metavar="FORMAT")],
    report: Annotated[Path, typer.Argument()] = Path("site/report.json"),
) -> None:
    """Print the times of correct results of a report as JSON for another dashboard.

    Args:
        form: `bencher`: Bencher's metric format (`bencher run --adapter json --file`). `pytorch`: PyTorch's benchmark database.
        report (FILE): The report.json of a build.
    """
    metrics = bencher_metrics if form == "bencher" else pytorch_metrics
    print_json(metrics(read_report(report)))
