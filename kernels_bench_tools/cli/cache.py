"""``kbt cache``: how large the results of cells are, and keeping them small and sound."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.progress import make_progress
from kernels_bench_tools.notebooks.limits import read_size
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.run.cache.prune import StoredEntry, list_entries, prune_cache, verify_cache
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.locks import project_lock
from kernels_bench_tools.text import size as readable_size

cache = typer.Typer(
    no_args_is_help=True,
    help="""Look into the stored results of cells, `.kbt/cache`, and keep them small and sound.

    A build stores what each cell left under a key made of all that led to it, and runs a cell only if there is
    no such result. Deleting `.kbt` loses nothing but time.
    """,
)


@cache.command("info")
def info(json: Json = False) -> None:
    """Print how many results are stored, how large they are, and how old."""
    project = find_project(Path.cwd())
    entries = list_entries(CellCache(project.state))
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
        print(msgspec.json.encode(data).decode())
        return
    print(f"{_results(len(entries))}, {readable_size(size)} of {readable_size(project.cache_size)}")
    print(f"in the report, and never removed: {len(shown)} of them, {readable_size(_size(shown))}")
    if ages:
        print(f"used between {_age(max(ages))} and {_age(min(ages))} ago")


@cache.command("prune")
def prune(
    size: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="What all results together may take, such as 5G; 0 keeps only what the report shows. "
            "[default: `cache_size` of `[tool.kbt]`, or 10 GB]",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Remove the least recently used results until the rest fits. A build does so by itself when it ends.

    What the report shows stays, and so does what an interrupted measurement will go on from.
    """
    project = find_project(Path.cwd())
    limit = project.cache_size if not size else 0 if size.strip() == "0" else read_size("--size", size)
    with make_progress() as progress, project_lock(project, progress):
        store = CellCache(project.state, progress.note)
        store.sweep()
        removed = prune_cache(store, limit)
        left = list_entries(store)
    print(f"removed {_results(len(removed))}, {readable_size(_size(removed))}")
    print(f"kept {_results(len(left))}, {readable_size(_size(left))}")
    if _size(left) > limit:
        print(f"note: that is more than {readable_size(limit)}, and all of it is in use", file=sys.stderr)


@cache.command("verify")
def verify() -> None:
    """Digest every stored file again, and remove the results that are damaged; the next build makes them anew."""
    project = find_project(Path.cwd())
    with make_progress() as progress, project_lock(project, progress):
        store = CellCache(project.state)
        store.sweep()
        count = len(store.entries())

        def look(done: int, of: int) -> None:
            if done % 1000 == 0 and done < of:
                progress.note(f"{done} of {of} results are verified")

        removed = verify_cache(store, look)
    for name, flaw in removed.items():
        print(f"removed {name}: {flaw}")
    sound, gone = count - len(removed), len(removed)
    print(f"{_results(sound)} {_are(sound)} sound, {gone} {'was' if gone == 1 else 'were'} removed")


def _results(count: int) -> str:
    return f"{count} result{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _size(entries: list[StoredEntry]) -> int:
    return sum(entry.size for entry in entries)


def _age(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
