"""``kbt build``: run what changed, then publish the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.output import (
    cell_data,
    finished_cells,
    known_records,
    last_build,
    note,
    note_unused,
    print_failures,
    print_json,
    short_path,
    summarize_build,
)
from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.notebooks.project import Project, find_project_of, operators
from kernels_bench_tools.records.build import BuildRun
from kernels_bench_tools.records.committed import effect_files, record_files
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.report.folder import OutputFolder, Published
from kernels_bench_tools.report.paths import STATUS
from kernels_bench_tools.report.site import program_key, publish
from kernels_bench_tools.results.effects import Effects
from kernels_bench_tools.results.missing import missing_summaries
from kernels_bench_tools.results.needed import Needed, needed
from kernels_bench_tools.run.build import build as run_notebooks
from kernels_bench_tools.run.build import several_gpus
from kernels_bench_tools.run.environment.base import ignore_folder
from kernels_bench_tools.run.locks import project_lock
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.text.words import abbreviated, plural

if TYPE_CHECKING:
    from kernels_bench_tools.results.history.timeline import History

SITE = "site"
"""The report's folder in a project; made with a ``.gitignore``, so that its files do not make the checkout dirty."""


@takes_build_options()
def build(
    paths: opt.Paths = None,
    *,
    options: BuildOptions,
    strict: opt.Strict = False,
    output: opt.Output = None,
    since: str = "",
    stale: bool = False,
    minutes: float = 0,
    json: opt.Json = False,
) -> int:
    """Run cells whose inputs changed, then publish the report.

    With PATHs, run only those notebooks and what they need; the report shows the last results of the others. A long
    build publishes committed records and stored results first, then each operator once it is measured.

    The report is always written and lists failures with their reasons. The exit code covers the cells of this build,
    including stored results, but neither other cells nor committed records.

    Args:
        since (STATE): Git revision, or report.json of an earlier build. The front page lists what changed since, and pages of
            implementations plot their committed times.
        stale: Measure only operators of which this device lacks results: missing ones, those whose code has changed, and
            those without a verdict. All implementations of an operator are measured again, in one session.
        minutes: With --stale: start an operator only if it is expected to be finished in this time. Run the command again
            for what is left, after `kbt record`.
    """
    project = find_project_of(paths or ())
    note_unused({"--minutes": minutes and not stale}, "without --stale")
    if stale:
        options = _plan_lacking(project, paths or [], options, 60 * minutes or inf)
    history = None
    if since:  # before cells run, because it may be invalid
        from kernels_bench_tools.cli.compare import place_of  # they load numpy
        from kernels_bench_tools.results.history.timeline import find_history

        history = find_history(place_of(project), since)
    result, published = build_report(project, paths or [], options, output, history)
    left = _find_lacking(project, paths or [], options) if stale else {}
    if json:
        cells = [cell_data(*each) for each in finished_cells(result)]
        left_out = [problem for problems in result.left_out.values() for problem in problems]
        data = {"index": str(published.index), "device": result.device, "cells": cells, "left_out": left_out}
        print_json(
            data | ({"left": {name: found._asdict() for name, found in left.items()}} if stale else {})
        )
    else:
        print(summarize_build(result))
        print(short_path(published.index))
        if stale:
            listed = [f"{operator} ({plural(found.results, 'result')})" for operator, found in left.items()]
            minutes = sum(found.seconds for found in left.values()) / 60
            print(f"left: {abbreviated(listed)}, about {minutes:.0f} min" if left else "nothing is left")
    return print_build_failures(result, published, strict=strict)


def _plan_lacking(project: Project, paths: list[str], options: BuildOptions, seconds: float) -> BuildOptions:
    """Return options with which operators of which this device lacks results are measured, as far as the time lasts."""
    planned, left = dict[str, float](), seconds * max(1, len(several_gpus()))
    for operator, found in _find_lacking(project, paths, options).items():
        if sum(planned.values()) + found.seconds <= left:
            planned[operator] = found.seconds
    return replace(options, planned=planned, rerun=(*planned,), seconds=seconds)


def _find_lacking(project: Project, paths: list[str], options: BuildOptions) -> dict[str, Needed]:
    """Return the operators of which this device lacks results, those with most in a second first.

    Committed records count, and results of the last build.
    """
    device, last, wanted = current_device(), last_build(project), {*project.find_notebooks(paths)}
    found = {}
    for operator, files in operators(project).items():
        if not wanted.intersection(files):
            continue
        notebooks, records = known_records(project, operator, files, last)
        digests = {name: one.digests for name, one in notebooks.items()}
        processes = options.process_counts(device.kind)[-1]
        found[operator] = needed(operator, records, digests, device, options.request, processes)
    lacking = sorted(found, key=lambda operator: -found[operator].results / found[operator].seconds)
    return {operator: found[operator] for operator in lacking if found[operator].results}


def build_report(
    project: Project,
    targets: list[str],
    options: BuildOptions,
    output: Path | None = None,
    history: History | None = None,
    *,
    on_published: Callable[[], None] = lambda: None,
) -> tuple[BuildRun, Published]:
    """Run the notebooks that ``targets`` name (all if empty), and publish the report to ``output``, by default site/.

    A long build publishes what it has while it runs, too; ``on_published`` is called after that.
    """
    site = output or project.root / SITE
    folder = OutputFolder(site, named=output is not None)
    folder.check()  # before cells run
    is_new = output is None and (not site.exists() or os.path.lexists(site / ".gitignore"))
    # Held until the pages are written, because another build would replace their artifacts.
    with project_lock(project, PlainProgress()):

        def publish_results(results: BuildRun) -> Published:
            folder.clear_way()
            if is_new:
                ignore_folder(site)
            missing = missing_summaries(
                project.root, results, project.state / "summaries.json", program_key()
            )
            effects = Effects(project.root, effect_files(project.root))
            return publish(project.root, results, folder, missing, effects, history)

        progress = PlainProgress()

        def show(results: BuildRun) -> None:
            index, (done, total) = short_path(publish_results(results).index), results.measured
            committed = any(record_files(project.root / operator) for operator in operators(project))
            beside = " and the committed records" if committed else ""
            progress.note(f"{index} has the results of {done} of {total} implementations{beside}")
            on_published()

        result = run_notebooks(project, targets, options, progress, show)
        published = publish_results(result)
    return result, published


def print_build_failures(result: BuildRun, published: Published, *, strict: bool) -> int:
    """Print what is wrong with a build on stderr, and return the exit code."""
    for link in published.dead_links:
        note(f"broken link: {link}")
    return print_failures(result, strict=strict, see=short_path(published.index.parent / STATUS))
