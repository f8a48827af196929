"""``kbt upgrade``: newer packages for cells, by moving the date in their headers."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli.options import Paths
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.notebooks.upgrade import apply_changes, count_undated, find_changes, parse_moment


def upgrade(
    paths: Paths = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="DATE", help="Such as 2026-11-20. [default: today]", show_default=False),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would move, and write nothing.")
    ] = False,
) -> None:
    """Move `exclude-newer` in cells' headers: the date as of which their packages are resolved.

    Only that line changes. The cells run at the next build, since other packages can give other numbers;
    `kbt plan` shows which. Version pins such as `torch==2.13.0` stay as they are written.
    """
    project = find_project(Path.cwd())
    now = datetime.now(UTC)
    after = parse_moment(to or f"{now:%Y-%m-%d}", now)
    changes = find_changes(project, paths or [], after)
    undated = count_undated(project, paths or [])
    if not dry_run:
        apply_changes(changes)
    for change in changes:
        print(f"{change.where}: {change.before} -> {change.after}")
    verb = "would move" if dry_run else "moved"
    print(f"{verb} {len(changes)} date{'' if len(changes) == 1 else 's'} to {after}")
    if undated:
        print(
            f"note: {undated} cells install packages without a date. `kbt check` names them.", file=sys.stderr
        )
