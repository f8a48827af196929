"""``kbt cache``: inspect and prune the stored results of cells."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import note, print_json
from kernels_bench_tools.cli.progress import PlainProgress, make_progress
from kernels_bench_tools.notebooks.project import find_project, read_size
from kernels_bench_tools.own_folders import remove_tree
from kernels_bench_tools.report.folder import OutputFolder
from kernels_bench_tools.run.cache.store import CellCache, StoredEntry
from kernels_bench_tools.run.locks import project_lock, remove_state
from kernels_bench_tools.text import plural
from kernels_bench_tools.text import size as readable_size

cache = typer.Typer(
    no_args_is_help=True,
    help="""Inspect and prune the stored results of cells.

    Results are stored in `.kbt/cache` by a key of all inputs of the cell; a build runs a cell only if there is no
    result for its key. `.kbt` can be deleted: the next build then runs every cell.
    """,
)


@cache.command("info")
def info(json: Json = False) -> None:
    """Print number, size and age of the stored results."""
    project = find_project(Path.cwd())
    entries = CellCache(project.state).entries()
    size, shown = _size(entries), [entry for entry in entries if entry.shown]
    ages = [max(0.0, time.time() - entry.used) for entry in entries]
    if json:
        data = {
            "entries": len(entries),
            "bytes": size,
            "shown_entries": len(shown),
            "shown_bytes": _size(shown),
            "limit_bytes": project.cache_size,
            "oldest_seconds": round(max(ages, default=0.0)),
            "newest_seconds": round(min(ages, default=0.0)),
        }
        print_json(data)
        return
    print(f"{plural(len(entries), 'result')}, {readable_size(size)} of {readable_size(project.cache_size)}")
    print(
        f"used by the report (never removed): {plural(len(shown), 'result')}, {readable_size(_size(shown))}"
    )
    if ages:
        print(f"last used between {_age(max(ages))} and {_age(min(ages))} ago")


@cache.command("prune")
def prune(size: str = "") -> None:
    """Remove the least recently used results over the size limit.

    Results that the report uses, and those of interrupted measurements, are kept. Every build does this at its end.

    Args:
        size (SIZE): Maximum size of all results, such as 5G; 0 keeps only those that the report uses. [default:
            `cache_size` of `[tool.kbt]`, or 10 GB]
    """
    project = find_project(Path.cwd())
    limit = project.cache_size if not size else 0 if size.strip() == "0" else read_size("--size", size)
    with make_progress() as progress, project_lock(project, progress):
        store = CellCache(project.state, progress.note)
        store.sweep()
        removed = store.prune(limit)
        left = store.entries()
    print(f"removed {plural(len(removed), 'result')}, {readable_size(_size(removed))}")
    print(f"kept {plural(len(left), 'result')}, {readable_size(_size(left))}")
    if _size(left) > limit:
        note(f"this is more than {readable_size(limit)}, and all of it is in use")


def _size(entries: list[StoredEntry]) -> int:
    return sum(entry.size for entry in entries)


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


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
