"""``kbt clean``: remove what builds wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.report.folder import OutputFolder
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.locks import project_lock, remove_state
from kernels_bench_tools.text.numbers import size
from kernels_bench_tools.text.words import plural


def clean(unused: bool = False, everything: Annotated[bool, typer.Option("--all")] = False) -> None:
    """Remove the report and generated scripts.

    Keeps results of cells in .kbt/cache unless an option removes them. Each build removes the least recently used ones
    beyond `cache_size` of `[tool.kbt]`.

    Args:
        unused: Also remove results that the report does not show, such as those of earlier code.
        everything: Also remove all results, so that the next build runs every cell.
    """
    project = find_project()
    with project_lock(project, PlainProgress()):
        pages = OutputFolder(project.root / "site", named=False).clear()
        print(f"removed {pages} published files")
        for folder in sorted({path.parent / ".kbt" / "cells" for path in project.notebook_paths()}):
            if folder.is_dir():
                remove_tree(folder, project.root, strict=True)
                print(f"removed {project.relative(folder)}")
        if unused:
            store = CellCache(project.state)
            store.sweep()
            removed, left = store.prune(0), store.entries()
            print(f"removed {plural(len(removed), 'result')}, {size(sum(entry.size for entry in removed))}")
            print(f"kept {plural(len(left), 'result')}, {size(sum(entry.size for entry in left))}")
        if everything:
            remove_state(project)
            print(f"removed {project.relative(project.state)}")
