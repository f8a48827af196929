"""``kbt clean``: remove what builds wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.report.folder import OutputFolder
from kernels_bench_tools.run.locks import project_lock, remove_state


def clean(everything: Annotated[bool, typer.Option("--all")] = False) -> None:
    """Remove the report and generated scripts.

    Results of cells in .kbt/cache are kept unless --all is given.

    Args:
        everything: Also remove all results, so that the next build runs every cell.
    """
    project = find_project(Path.cwd())
    with project_lock(project, PlainProgress()):
        site = project.root / "site"
        pages = OutputFolder(site).clear() if site.exists() else 0
        print(f"removed {pages} published files")
        for folder in sorted({path.parent / ".kbt" / "cells" for path in project.notebook_paths()}):
            if folder.is_dir():
                remove_tree(folder, project.root, strict=True)
                print(f"removed {project.relative(folder)}")
        if everything:
            remove_state(project)
            print(f"removed {project.relative(project.state)}")
