"""The result of a build, as pages show it: every notebook, with the results of its cells."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import read_struct, write_struct
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.entry import Entry
from kernels_bench_tools.schema.build import BuildRun, CellRun, NotebookRun, Prose


def describe_cell(project: Project, cell: Cell, entry: Entry | None, cached: bool) -> CellRun:
    """Return a cell and its last result as pages show it; ``cached`` is whether this build did not run it."""
    run = CellRun(
        id=cell.id,
        code=cell.code,
        line=cell.file_line,
        collapse_code=cell.collapse_code,
        collapse_output=cell.collapse_output,
        commented=cell.commented,
    )
    if entry is None:
        return run

    folder, inside = str(entry.folder), project.relative(entry.folder)

    def log(name: str) -> str:
        return f"{inside}/{name}" if os.stat(f"{folder}/{name}").st_size else ""  # noqa: PTH116 - much faster

    result = entry.result
    run.status, run.reason, run.cached = result.status, result.reason, cached
    run.seconds, run.exit_code = result.seconds, result.exit_code
    run.stdout, run.stderr, run.environment_log = log("stdout.txt"), log("stderr.txt"), log("environment.txt")
    run.artifacts = {name: f"{inside}/artifacts/{name}" for name in result.artifacts}
    return run


def describe_notebook(notebook: Notebook, describe: Callable[[CellName, Cell], CellRun]) -> NotebookRun:
    """Return a notebook as a page shows it; ``describe`` returns each of its cells."""
    blocks: list[Prose | CellRun] = []
    for block in notebook.blocks:
        if isinstance(block, Cell):
            blocks.append(describe(CellName(notebook.name, block.id), block))
        else:
            blocks.append(Prose(text=block))
    return NotebookRun(path=notebook.name, digest=notebook.digest, front=notebook.front, blocks=blocks)


def write_if_changed(path: Path, run: BuildRun) -> None:
    """Write the result of a build, unless it is the same: then the file keeps its time."""
    try:
        same = read_struct(path, BuildRun) == run
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        same = False
    if not same:
        write_struct(path, run)
