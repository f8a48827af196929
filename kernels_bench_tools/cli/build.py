"""``kbt build``: run what changed, then publish the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.output import (
    cell_data,
    finished_cells,
    note,
    print_failures,
    print_json,
    short_path,
    summarize_build,
)
from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.notebooks.project import Project, find_project_of, operators
from kernels_bench_tools.records.build import BuildRun
from kernels_bench_tools.records.committed import effect_files, record_files
from kernels_bench_tools.report.folder import OutputFolder, Published
from kernels_bench_tools.report.paths import STATUS
from kernels_bench_tools.report.site import program_key, publish
from kernels_bench_tools.results.effects import Effects
from kernels_bench_tools.results.missing import missing_summaries
from kernels_bench_tools.run.build import build as run_notebooks
from kernels_bench_tools.run.environment.base import ignore_folder
from kernels_bench_tools.run.locks import project_lock
from kernels_bench_tools.run.options import BuildOptions

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
    """
    project = find_project_of(paths or ())
    history = None
    if since:  # before cells run, because it may be invalid
        from kernels_bench_tools.cli.compare import place_of  # they load numpy
        from kernels_bench_tools.results.history.timeline import find_history

        history = find_history(place_of(project), since)
    result, published = build_report(project, paths or [], options, output, history)
    if json:
        cells = [cell_data(*each) for each in finished_cells(result)]
        left_out = [problem for problems in result.left_out.values() for problem in problems]
        print_json(
            {"index": str(published.index), "device": result.device, "cells": cells, "left_out": left_out}
        )
    else:
        print(summarize_build(result))
        print(short_path(published.index))
    return print_build_failures(result, published, strict=strict)


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
