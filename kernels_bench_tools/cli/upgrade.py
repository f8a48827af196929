"""``kbt upgrade``: newer packages for cells, by changing the date in their headers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli.options import Paths
from kernels_bench_tools.cli.output import note, plural
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.notebooks.upgrade import apply_changes, find_changes, parse_moment


def upgrade(
    paths: Paths = None,
    to: Annotated[
        str, typer.Option("--to", metavar="DATE", help="New date, such as 2026-11-20. [default: today]")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes without writing them.")
    ] = False,
) -> None:
    """Update the package date (`exclude-newer`) in cell headers.

    Packages of a cell are resolved as of this date. The changed cells run at the next build; `kbt plan` lists them.
    Version pins such as `torch==2.13.0` are not changed.
    """
    project = find_project(Path.cwd())
    now = datetime.now(UTC)
    after = parse_moment(to or f"{now:%Y-%m-%d}", now)
    changes, undated = find_changes(project, paths or [], after)
    if not dry_run:
        apply_changes(changes)
    for change in changes:
        print(f"{change.where}: {change.before} -> {change.after}")
    print(f"{'would change' if dry_run else 'changed'} {plural(len(changes), 'date')} to {after}")
    if undated:
        note(f"{undated} cells install packages without a date; `kbt check` lists them")
