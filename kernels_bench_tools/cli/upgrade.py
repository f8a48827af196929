"""``kbt upgrade``: newer packages for cells, by changing the date in their headers, or where this package comes from."""

from __future__ import annotations

from dataclasses import replace

from kernels_bench_tools.cli.options import Paths
from kernels_bench_tools.cli.output import note
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.harness import parse_harness
from kernels_bench_tools.notebooks.project import find_project_of
from kernels_bench_tools.notebooks.upgrade import (
    apply_changes,
    find_changes,
    find_harness_changes,
    parse_date,
    today,
    write_setting,
)
from kernels_bench_tools.text.words import plural


def upgrade(paths: Paths = None, to: str = "", harness: bool = False, dry_run: bool = False) -> None:
    """Change the headers of cells: the package date (`exclude-newer`), or where they get this package.

    Packages of a cell are resolved as of this date. The changed cells run at the next build; `kbt plan` lists them.
    Version pins such as `torch==2.13.0` are not changed.

    Args:
        to (DATE): New date, such as 2026-11-20. [default: today]
        harness: Change instead where all cells get this package from, to a version, a path or a Git URL, such as
            `--harness kernels-bench-tools==0.1.0`, and write it to pyproject.toml. Without a value, use the one there.
        dry_run: Print the changes without writing them.
    """
    project = find_project_of(() if harness else paths or ())
    wanted, undated = project.harness, 0
    if harness:
        if to or len(paths or []) > 1:
            what = "cannot be used with --to" if to else "takes one value, since it changes all notebooks"
            raise ProjectError("--harness", what, "A version, a path or a git URL")
        if value := "".join(paths or []):
            wanted = parse_harness(value, project.root)
        changes = find_harness_changes(replace(project, harness=wanted))
        into = f": this package from {wanted.setting()}"
    else:
        after = parse_date(to) if to else today()
        changes, undated = find_changes(project, paths or [], after)
        into = f" to {after}"
    if not dry_run:
        if wanted != project.harness:
            write_setting(project, wanted)
        apply_changes(changes)
    for change in changes:
        print(change.said)
    print(f"{'would change' if dry_run else 'changed'} {plural(len(changes), 'header')}{into}")
    if undated:
        note(f"{undated} cells install packages without a date; `kbt check` lists them")
    if harness and "git" in wanted.source and not wanted.source.keys() & {"rev", "tag"}:
        note("without a revision, later builds may install another version; add one, such as @v0.1.0")
